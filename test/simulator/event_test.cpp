// Events of the simulated device: records, waits, queries.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <vector>

namespace {

using namespace std::chrono_literals;

class event : public simulated_device {
protected:
  void note(CUstream on, int mark) {
    simulator::work(on, {}, 1us, [this, mark] { ran_.push_back(mark); });
  }
  std::vector<int> ran_;
};

TEST_F(event, unrecorded_event_is_complete) {
  CUevent const e = new_event();
  EXPECT_EQ(cu().event_query(e), CUDA_SUCCESS);
  EXPECT_EQ(cu().event_synchronize(e), CUDA_SUCCESS);
  CUstream const s = new_stream();
  EXPECT_EQ(cu().stream_wait(s, e, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_query(s), CUDA_SUCCESS);
}

TEST_F(event, event_completes_with_the_work_before_it) {
  CUstream const s = new_stream();
  CUevent const e = new_event();
  note(s, 1);
  EXPECT_EQ(cu().event_record(e, s), CUDA_SUCCESS);
  note(s, 2);
  EXPECT_EQ(cu().event_query(e), CUDA_ERROR_NOT_READY);
  simulator::step(2);
  EXPECT_EQ(cu().event_query(e), CUDA_SUCCESS);
  EXPECT_EQ(ran_, std::vector{1});
}

TEST_F(event, stream_that_waits_runs_after_the_event) {
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    simulator::seed(seed);
    ran_.clear();
    CUstream const a = new_stream();
    CUstream const b = new_stream();
    CUevent const e = new_event();
    note(a, 1);
    cu().event_record(e, a);
    cu().stream_wait(b, e, 0);
    note(b, 2);
    simulator::run_until_idle();
    EXPECT_EQ(ran_, (std::vector{1, 2}));
  }
}

TEST_F(event, wait_keeps_its_record_when_the_event_is_recorded_again) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  CUstream const stuck = new_stream();
  CUevent const e = new_event();
  char* flag = new_memory(4);
  cu().event_record(e, a);
  cu().stream_wait(b, e, 0);
  cu().wait_value(stuck, address(flag), 1, CU_STREAM_WAIT_VALUE_EQ);
  cu().event_record(e, stuck);
  EXPECT_EQ(cu().stream_synchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(cu().event_query(e), CUDA_ERROR_NOT_READY);
  *reinterpret_cast<std::uint32_t*>(flag) = 1;
  EXPECT_EQ(cu().event_synchronize(e), CUDA_SUCCESS);
}

TEST_F(event, context_event_covers_every_stream) {
  CUevent const e = new_event();
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  note(a, 1);
  note(b, 2);
  ASSERT_EQ(cu().context_record(context_, e), CUDA_SUCCESS);
  simulator::step();
  EXPECT_EQ(cu().event_query(e), CUDA_ERROR_NOT_READY);
  simulator::step();
  EXPECT_EQ(cu().event_query(e), CUDA_SUCCESS);
}

TEST_F(event, use_of_a_destroyed_event_with_a_recycled_handle_is_found) {
  CUevent const first = new_event();
  cu().event_destroy(first);
  EXPECT_EQ(cu().event_query(first), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(only_finding().kind, simulator::finding_kind::dead_event);
  EXPECT_EQ(new_event(), first);
}

TEST_F(event, event_destroyed_while_pending_still_delays_the_waiting_stream) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  CUevent const e = new_event();
  note(a, 1);
  cu().event_record(e, a);
  cu().stream_wait(b, e, 0);
  cu().event_destroy(e);
  note(b, 2);
  cu().stream_synchronize(b);
  EXPECT_EQ(ran_, (std::vector{1, 2}));
}

TEST_F(event, elapsed_time_is_simulated_time) {
  CUstream const s = new_stream();
  CUevent const begin = new_event(CU_EVENT_DEFAULT);
  CUevent const end = new_event(CU_EVENT_DEFAULT);
  cu().event_record(begin, s);
  simulator::work(s, {}, 3ms);
  cu().event_record(end, s);
  float milliseconds = 0;
  EXPECT_EQ(cu().elapsed_time(&milliseconds, begin, end), CUDA_ERROR_NOT_READY);
  cu().event_synchronize(end);
  EXPECT_EQ(cu().elapsed_time(&milliseconds, begin, end), CUDA_SUCCESS);
  EXPECT_NEAR(milliseconds, 3.0, 0.1);
  EXPECT_EQ(cu().elapsed_time(&milliseconds, new_event(), end), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(event, event_of_another_context_is_refused) {
  simulator::options two = stepped_by_hand();
  two.devices = 2;
  simulator::reset(two);
  CUcontext other = nullptr;
  ASSERT_EQ(cu().retain(&other, 1), CUDA_SUCCESS);
  CUevent const here = new_event();
  cu().set_current(other);
  CUstream const there = new_stream();
  EXPECT_EQ(cu().event_record(here, there), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu().stream_wait(there, here, 0), CUDA_SUCCESS);
  cu().release(1);
}

TEST_F(event, flag_wait_holds_a_stream_until_another_writes) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  char* flag = new_memory(8);
  cu().wait_value_64(a, address(flag), std::uint64_t{1} << 40, CU_STREAM_WAIT_VALUE_GEQ);
  note(a, 1);
  EXPECT_EQ(simulator::run_until_idle(), 2u);
  cu().write_value_64(b, address(flag), std::uint64_t{1} << 40, 0);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_EQ(ran_, std::vector{1});
}

} // namespace
