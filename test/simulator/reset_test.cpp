// Resets of the simulated device between the tests of one process, and the ends of threads.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <cstdlib>
#include <string>
#include <thread>

namespace {

class kept_objects : public simulated_device {
protected:
  static simulator::options keeping(std::string const& name = {}) {
    simulator::options how = stepped_by_hand();
    how.keep_objects = true;
    how.name = name;
    return how;
  }
};

TEST_F(kept_objects, stay_valid_and_their_work_is_complete) {
  CUstream const stream = new_stream();
  CUevent const event = new_event();
  char* const memory = new_memory(1 << 20);
  bool ran = false;
  simulator::work(stream, {simulator::write(memory, 1 << 20)}, {}, [&] { ran = true; });
  EXPECT_EQ(cu().event_record(event, stream), CUDA_SUCCESS);
  simulator::never_complete(event);
  simulator::reset(keeping());
  EXPECT_EQ(cu().event_query(event), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_query(stream), CUDA_SUCCESS);
  EXPECT_FALSE(ran);
  CUstream const other = new_stream();
  simulator::work(other, {simulator::write(memory, 1 << 20)}); // ordered after all work before the reset
  EXPECT_EQ(cu().stream_synchronize(other), CUDA_SUCCESS);
  simulator::reset(keeping());
  EXPECT_EQ(simulator::report().bytes_allocated, std::size_t{1} << 20);
  EXPECT_EQ(simulator::report().driver_calls.size(), 0u);
  EXPECT_EQ(cu().free(reinterpret_cast<CUdeviceptr>(memory)), CUDA_SUCCESS);
}

TEST_F(kept_objects, work_that_ran_comes_before_work_after_the_reset) {
  char* const memory = new_memory(1 << 20);
  simulator::work(new_stream(), {simulator::write(memory, 1 << 20)});
  simulator::run_until_idle();
  simulator::reset(keeping());
  CUstream const other = new_stream();
  simulator::work(other, {simulator::write(memory, 1 << 20)});
  EXPECT_EQ(cu().stream_synchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(cu().free(reinterpret_cast<CUdeviceptr>(memory)), CUDA_SUCCESS);
}

TEST_F(kept_objects, captures_end) {
  CUstream const stream = new_stream();
  EXPECT_EQ(cu().begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  simulator::reset(keeping());
  CUstreamCaptureStatus status{};
  EXPECT_EQ(cu().is_capturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(cu().stream_synchronize(stream), CUDA_SUCCESS);
}

TEST_F(kept_objects, count_against_a_new_capacity) {
  char* const memory = new_memory(64 << 20);
  simulator::options how = keeping();
  how.capacity = std::size_t{32} << 20;
  simulator::reset(how);
  CUdeviceptr none = 0;
  EXPECT_EQ(cu().allocate(&none, 1 << 20), CUDA_ERROR_OUT_OF_MEMORY);
  how.capacity = std::size_t{1} << 40;
  simulator::reset(how);
  char* const large = new_memory(std::size_t{500} << 30);
  for (char* each : {memory, large}) EXPECT_EQ(cu().free(reinterpret_cast<CUdeviceptr>(each)), CUDA_SUCCESS);
  EXPECT_EQ(simulator::report().bytes_allocated, 0u);
}

TEST_F(kept_objects, context_of_a_hidden_device_comes_back) {
  simulator::options two = keeping();
  two.devices = 2;
  simulator::reset(two);
  CUcontext context = nullptr;
  unsigned long long id = 0;
  EXPECT_EQ(cu().retain(&context, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu().context_id(context, &id), CUDA_SUCCESS);
  simulator::reset(keeping());
  EXPECT_EQ(cu().retain(&context, 1), CUDA_ERROR_INVALID_DEVICE);
  simulator::reset(two);
  unsigned long long now = 0;
  EXPECT_EQ(cu().context_id(context, &now), CUDA_SUCCESS);
  EXPECT_EQ(now, id);
  EXPECT_EQ(cu().release(1), CUDA_SUCCESS);
}

TEST_F(kept_objects, findings_that_a_test_left_name_it_at_the_end) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const leave_one = [] {
    CUstream const stream = new_stream();
    cu().stream_destroy(stream);
    cu().stream_query(stream);
  };
  EXPECT_EXIT(
      {
        simulator::reset(keeping("a.first"));
        leave_one();
        simulator::reset(keeping("a.second"));
        std::exit(simulator::take_findings().empty() ? EXIT_SUCCESS : 2);
      },
      testing::ExitedWithCode(EXIT_FAILURE), "not taken: 1\n  in a.first: use of a stream");
  EXPECT_EXIT(
      {
        simulator::reset(keeping());
        leave_one();
        std::exit(EXIT_SUCCESS);
      },
      testing::ExitedWithCode(EXIT_FAILURE), "not taken: 1\n  in part [0-9]+: use of a stream");
}

TEST_F(kept_objects, streams_of_ended_threads_are_gone) {
  auto const in_a_thread = [&](bool waits) {
    std::thread([&] {
      EXPECT_EQ(cu().set_current(context_), CUDA_SUCCESS);
      simulator::work(CU_STREAM_PER_THREAD, {});
      if (waits) EXPECT_EQ(cu().stream_synchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    }).join();
  };
  std::uint64_t const before = simulator::report().streams_alive;
  for (int i = 0; i < 10; ++i) in_a_thread(true);
  EXPECT_EQ(simulator::report().streams_alive, before);
  in_a_thread(false); // its work still runs
  EXPECT_EQ(simulator::report().streams_alive, before + 1);
  EXPECT_EQ(simulator::report().operations_pending, 1u);
  simulator::run_until_idle();
  EXPECT_EQ(simulator::report().streams_alive, before);
}

} // namespace
