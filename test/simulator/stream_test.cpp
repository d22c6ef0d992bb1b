// Streams of the simulated device: order, barriers, identity.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <algorithm>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

class stream : public simulated_device {
protected:
  /// Enqueues work that stores `mark` when it runs.
  void note(CUstream on, int mark) {
    simulator::work(on, {}, 1us, [this, mark] { ran_.push_back(mark); });
  }
  std::vector<int> ran_;
};

TEST_F(stream, work_runs_only_when_the_device_steps) {
  CUstream const s = new_stream();
  note(s, 1);
  EXPECT_TRUE(ran_.empty());
  EXPECT_EQ(cu().stream_query(s), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(simulator::step(), 1u);
  EXPECT_EQ(ran_, std::vector{1});
  EXPECT_EQ(cu().stream_query(s), CUDA_SUCCESS);
}

TEST_F(stream, immediate_device_runs_all_work_before_each_call) {
  simulator::reset({.mode = simulator::stepping::immediate});
  CUstream const s = new_stream();
  for (int mark = 0; mark < 100; ++mark) note(s, mark);
  EXPECT_EQ(cu().stream_query(s), CUDA_SUCCESS);
  EXPECT_EQ(ran_.size(), 100u);
}

TEST_F(stream, work_is_ordered_within_a_stream_only) {
  bool seen[2] = {};
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    simulator::seed(seed);
    ran_.clear();
    CUstream const a = new_stream();
    CUstream const b = new_stream();
    note(a, 1);
    note(a, 2);
    note(b, 3);
    simulator::run_until_idle();
    EXPECT_LT(std::find(ran_.begin(), ran_.end(), 1), std::find(ran_.begin(), ran_.end(), 2));
    seen[ran_.front() == 3] = true;
  }
  EXPECT_TRUE(seen[0] && seen[1]);
}

TEST_F(stream, synchronize_steps_the_device) {
  CUstream const s = new_stream();
  note(s, 1);
  EXPECT_EQ(cu().stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(ran_, std::vector{1});
}

TEST_F(stream, blocking_stream_is_ordered_with_the_legacy_stream_both_ways) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    simulator::seed(seed);
    ran_.clear();
    CUstream const a = new_stream(CU_STREAM_DEFAULT);
    CUstream const b = new_stream(CU_STREAM_DEFAULT);
    note(a, 1);
    note(CU_STREAM_LEGACY, 2);
    note(b, 3);
    simulator::run_until_idle();
    EXPECT_EQ(ran_, (std::vector{1, 2, 3}));
  }
}

TEST_F(stream, non_blocking_stream_ignores_the_legacy_stream) {
  bool passed = false;
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    simulator::seed(seed);
    ran_.clear();
    note(CU_STREAM_LEGACY, 1);
    note(new_stream(), 2);
    simulator::run_until_idle();
    passed |= ran_.front() == 2;
  }
  EXPECT_TRUE(passed);
}

TEST_F(stream, legacy_query_covers_blocking_streams) {
  CUstream const blocking = new_stream(CU_STREAM_DEFAULT);
  note(blocking, 1);
  EXPECT_EQ(cu().stream_query(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu().stream_synchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(ran_, std::vector{1});
}

TEST_F(stream, per_thread_default_is_one_for_each_thread) {
  std::uint64_t const here = id_of(CU_STREAM_PER_THREAD);
  EXPECT_EQ(id_of(CU_STREAM_PER_THREAD), here);
  std::uint64_t there = 0;
  std::thread([&] {
    cu().set_current(context_);
    there = id_of(CU_STREAM_PER_THREAD);
  }).join();
  EXPECT_NE(there, here);
  EXPECT_NE(id_of(CU_STREAM_LEGACY), here);
  EXPECT_EQ(id_of(nullptr), id_of(CU_STREAM_LEGACY));
}

TEST_F(stream, null_stream_is_per_thread_for_per_thread_entry_points) {
  const decltype(&::cuStreamGetId) own =
      entry{"cuStreamGetId", CUDA_VERSION, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
  unsigned long long id = 0;
  EXPECT_EQ(own(nullptr, &id), CUDA_SUCCESS);
  EXPECT_EQ(id, id_of(CU_STREAM_PER_THREAD));
}

TEST_F(stream, handles_are_recycled_and_ids_are_not) {
  CUstream const first = new_stream();
  std::uint64_t const id = id_of(first);
  EXPECT_EQ(cu().stream_destroy(first), CUDA_SUCCESS);
  CUstream const second = new_stream();
  EXPECT_EQ(second, first);
  EXPECT_NE(id_of(second), id);
  EXPECT_EQ(simulator::report().stream_handles_recycled, 1u);
}

TEST_F(stream, work_of_a_destroyed_stream_still_runs) {
  CUstream const s = new_stream();
  note(s, 1);
  cu().stream_destroy(s);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_EQ(ran_, std::vector{1});
}

TEST_F(stream, use_after_destruction_fails_and_is_reported) {
  CUstream const s = new_stream();
  cu().stream_destroy(s);
  EXPECT_EQ(cu().stream_query(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(only_finding().kind, simulator::finding_kind::dead_stream);
}

TEST_F(stream, device_context_flags_and_priority_can_be_read) {
  CUstream s = nullptr;
  ASSERT_EQ(cu().stream_create_with_priority(&s, CU_STREAM_NON_BLOCKING, -3), CUDA_SUCCESS);
  CUdevice device = -1;
  CUcontext context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  EXPECT_EQ(cu().stream_device(s, &device), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_context(s, &context), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_flags(s, &flags), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_priority(s, &priority), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(context, context_);
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(priority, -3);
}

TEST_F(stream, order_depends_on_the_seed_only) {
  auto const order_of = [&](std::uint64_t seed) {
    simulator::reset(stepped_by_hand());
    simulator::seed(seed);
    ran_.clear();
    for (int i = 0; i < 4; ++i) {
      CUstream const s = new_stream();
      for (int j = 0; j < 4; ++j) note(s, 10 * i + j);
    }
    simulator::run_until_idle();
    return ran_;
  };
  EXPECT_EQ(order_of(7), order_of(7));
  EXPECT_NE(order_of(7), order_of(8));
}

TEST_F(stream, host_function_cannot_call_the_driver) {
  CUstream const s = new_stream();
  CUresult inside = CUDA_SUCCESS;
  simulator::work(s, {}, 1us, [&] { inside = cu().stream_query(s); });
  EXPECT_EQ(cu().stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(only_finding().kind, simulator::finding_kind::call_in_host_function);
}

TEST_F(stream, host_function_gets_its_data) {
  CUstream const s = new_stream();
  int value = 0;
  ASSERT_EQ(cu().host_function(s, [](void* data) { *static_cast<int*>(data) = 5; }, &value), CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  cu().stream_synchronize(s);
  EXPECT_EQ(value, 5);
}

TEST_F(stream, kernel_is_accepted_as_opaque_work) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu().load_module(&module, "image"), CUDA_SUCCESS);
  ASSERT_EQ(cu().module_function(&function, module, "kernel"), CUDA_SUCCESS);
  CUstream const s = new_stream();
  EXPECT_EQ(cu().launch(function, 1, 1, 1, 32, 1, 1, 0, s, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu().launch(function, 0, 1, 1, 32, 1, 1, 0, s, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_EQ(simulator::report().operations_run, 1u);
}

class moving_device : public simulated_device {
protected:
  moving_device() : simulated_device({}) {}
};

TEST_F(moving_device, queries_step_the_device) {
  CUstream const s = new_stream();
  bool ran = false;
  simulator::work(s, {}, 1us, [&] { ran = true; });
  int asked = 0;
  while (cu().stream_query(s) == CUDA_ERROR_NOT_READY) ASSERT_LT(++asked, 10'000);
  EXPECT_TRUE(ran);
}

} // namespace
