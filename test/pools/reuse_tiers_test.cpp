// Reuse keeps stream order: each reuse tier, and each schedule that breaks a naive pool.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::freed_in_use;
using gpumem_test::recording_upstream;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

template <class Function> Function* function(char const* name) { return gpumem_test::driver_function<Function>(name); }

class reuse_tiers_test : public gpumem_test::simulated_test {
protected:
  static cuda::stream_ref make_foreign(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    function<decltype(cuStreamCreate)>("cuStreamCreate")(&made, flags);
    return cuda::stream_ref{made};
  }
  static void destroy(cuda::stream_ref foreign) {
    function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2")(foreign.get());
  }
  // Enqueues device work that ends after the flag is written.
  void wait_for_flag(cuda::stream_ref on) {
    function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32_v2")(on.get(), flag, 1, CU_STREAM_WAIT_VALUE_GEQ);
  }
  void write_flag(cuda::stream_ref on, unsigned value = 1) {
    function<decltype(cuStreamWriteValue32)>("cuStreamWriteValue32_v2")(on.get(), flag, value, 0);
  }
  // Closed pools must finish with the device before the next test steps it.
  void TearDown() override {
    EXPECT_TRUE(gpumem_test::wait_for_releases(upstream.state(), upstream.state().draws().size()));
    simulated_test::TearDown();
    EXPECT_EQ(gpumem::driver_api::driver().mem_free(flag), CUDA_SUCCESS);
  }
  void SetUp() override {
    gpumem::driver_api::check(gpumem::driver_api::driver().mem_alloc(&flag, 256), "cuMemAlloc");
    write_flag(a, 0);
    simulator::run_until_idle();
  }

  // Returns whether the stream would get `bytes` now.
  template <class Pool> static bool can_have(Pool& pool, cuda::stream_ref on, std::size_t bytes) {
    auto const got = pool.try_allocate(on, bytes);
    if (got) pool.deallocate(on, *got, bytes);
    return got.has_value();
  }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  recording_upstream upstream;
  CUdeviceptr flag = 0;
};

TEST_F(reuse_tiers_test, same_stream_reuses_at_once) {
  pool_resource r{upstream};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  simulator::work(a, {simulator::write(p, 1 * MiB)});
  checked.deallocate(a, p, 1 * MiB);
  auto const calls = gpumem::driver_api::driver_calls();
  EXPECT_EQ(r.allocate(a, 1 * MiB), p);
  r.deallocate(a, p, 1 * MiB);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), calls + 2) << "beside `checked` each call asks for the capture";
  EXPECT_EQ(r.statistics().reuse_same_stream, 1u);
}

TEST_F(reuse_tiers_test, stream_reuses_memory_after_an_event_of_another) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  simulator::work(a, {simulator::write(p, 1 * MiB)});
  checked.deallocate(a, p, 1 * MiB);
  gpumem::event freed{device};
  freed.record(a);
  b.wait(freed);
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  EXPECT_EQ(r.statistics().reuse_ordered, 1u);
  checked.deallocate(b, p, 1 * MiB);
}

TEST_F(reuse_tiers_test, event_recorded_before_the_free_orders_nothing) {
  pool_resource r{upstream, {.limit = 2 * MiB, .cross_stream = gpumem::reuse_policy::ordered}};
  auto* const p = r.allocate(a, 1 * MiB);
  auto* const keep = r.allocate(a, 1 * MiB); // keeps the chunk from its return to the upstream
  gpumem::event early{device};
  early.record(a);
  r.deallocate(a, p, 1 * MiB);
  b.wait(early);
  EXPECT_FALSE(can_have(r, b, 1 * MiB));
  r.deallocate(a, keep, 1 * MiB);
}

TEST_F(reuse_tiers_test, complete_memory_goes_to_any_stream) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  simulator::work(a, {simulator::write(p, 1 * MiB)});
  checked.deallocate(a, p, 1 * MiB);
  a.synchronize();
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  EXPECT_EQ(r.statistics().reuse_completed, 1u);
  checked.deallocate(b, p, 1 * MiB);
}

TEST_F(reuse_tiers_test, wait_is_inserted_if_no_other_tier_has_memory) {
  pool_resource r{upstream, {.limit = 2 * MiB}};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  auto* const q = checked.allocate(a, 1 * MiB);
  simulator::work(a, {simulator::write(p, 1 * MiB)});
  EXPECT_FALSE(can_have(r, b, 1 * MiB)); // from here on under memory pressure: frees record events
  checked.deallocate(a, p, 1 * MiB);
  auto const records = gpumem::driver_api::driver_calls("cuEventRecord");
  auto const waits = gpumem::driver_api::driver_calls("cuStreamWaitEvent");
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  EXPECT_EQ(r.statistics().reuse_waited, 1u);
  EXPECT_LE(gpumem::driver_api::driver_calls("cuEventRecord") - records, 1u);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamWaitEvent") - waits, 1u);
  simulator::work(b, {simulator::write(p, 1 * MiB)});
  checked.deallocate(b, p, 1 * MiB);
  checked.deallocate(a, q, 1 * MiB);
}

TEST_F(reuse_tiers_test, reuse_policy_is_obeyed) {
  pool_resource own{upstream, {.limit = 1 * MiB, .cross_stream = gpumem::reuse_policy::ordered}};
  simulator::checked checked_own{own};
  freed_in_use(checked_own, a, 1 * MiB);
  a.synchronize();
  EXPECT_TRUE(can_have(own, a, 1 * MiB)) << "its own memory";
  pool_resource completed{upstream, {.limit = 1 * MiB, .cross_stream = gpumem::reuse_policy::completed}};
  simulator::checked checked_completed{completed};
  auto* const p = freed_in_use(checked_completed, a, 1 * MiB);
  auto const waits = gpumem::driver_api::driver_calls("cuStreamWaitEvent");
  EXPECT_FALSE(can_have(completed, b, 1 * MiB));
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamWaitEvent"), waits);
  simulator::run_until_idle();
  EXPECT_EQ(checked_completed.allocate(b, 1 * MiB), p);
  checked_completed.deallocate(b, p, 1 * MiB);
}

// A persistent kernel follows the free, and only later work of the other stream ends it.
TEST_F(reuse_tiers_test, event_recorded_after_the_free_is_not_waited_for) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  freed_in_use(checked, a, 1 * MiB);
  wait_for_flag(a);
  auto const waits = gpumem::driver_api::driver_calls("cuStreamWaitEvent");
  EXPECT_EQ(r.try_allocate(b, 1 * MiB).error().reason, outcome::exhausted);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamWaitEvent"), waits);
  write_flag(b);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_TRUE(can_have(r, b, 1 * MiB));
}

// The same if the stream is foreign and recorded no event: the host waits for a bounded time.
TEST_F(reuse_tiers_test, host_wait_for_frees_without_an_event_is_bounded) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  auto const foreign = make_foreign();
  freed_in_use(checked, foreign, 1 * MiB);
  wait_for_flag(foreign);
  EXPECT_EQ(r.try_allocate(b, 1 * MiB).error().reason, outcome::exhausted);
  write_flag(b);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_TRUE(can_have(r, b, 1 * MiB));
  destroy(foreign);
}

TEST_F(reuse_tiers_test, event_on_the_legacy_stream_is_not_waited_for) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  cuda::stream_ref const legacy{CU_STREAM_LEGACY};
  auto* const p = checked.allocate(legacy, 1 * MiB);
  EXPECT_FALSE(can_have(r, b, 1)); // under memory pressure: the free records an event
  auto const blocking = make_foreign(CU_STREAM_DEFAULT);
  wait_for_flag(blocking);
  checked.deallocate(legacy, p, 1 * MiB);
  auto const waits = gpumem::driver_api::driver_calls("cuStreamWaitEvent");
  EXPECT_FALSE(can_have(r, b, 1 * MiB));
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamWaitEvent"), waits);
  write_flag(b);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  checked.deallocate(b, p, 1 * MiB);
  destroy(blocking);
}

TEST_F(reuse_tiers_test, frees_without_an_event_of_a_destroyed_stream_are_recovered) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  auto const foreign = make_foreign();
  auto* const p = freed_in_use(checked, foreign, 1 * MiB);
  destroy(foreign);
  simulator::run_until_idle();
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  EXPECT_EQ(r.statistics().reuse_completed, 1u);
  checked.deallocate(b, p, 1 * MiB);
}

TEST_F(reuse_tiers_test, recycled_handle_is_another_stream) {
  pool_resource r{upstream, {.limit = 2 * MiB, .cross_stream = gpumem::reuse_policy::ordered}};
  auto const first = make_foreign();
  auto* const keep = r.allocate(first, 1 * MiB);
  r.deallocate(first, r.allocate(first, 1 * MiB), 1 * MiB);
  destroy(first);
  auto const second = make_foreign();
  ASSERT_EQ(first.get(), second.get()) << "the simulated device recycles eagerly";
  EXPECT_FALSE(can_have(r, second, 1 * MiB));
  r.deallocate_sync(keep, 1 * MiB);
  destroy(second);
}

TEST_F(reuse_tiers_test, null_stream_differs_by_thread) {
  pool_resource r{upstream, {.limit = 2 * MiB, .cross_stream = gpumem::reuse_policy::ordered}};
  cuda::stream_ref const null{static_cast<CUstream>(nullptr)};
  auto* const keep = r.allocate(null, 1 * MiB);
  r.deallocate(null, r.allocate(null, 1 * MiB), 1 * MiB);
  bool granted = true;
  std::thread{[&] { granted = can_have(r, null, 1 * MiB); }}.join();
  EXPECT_FALSE(granted);
  EXPECT_TRUE(can_have(r, null, 1 * MiB));
  r.deallocate(null, keep, 1 * MiB);
}

TEST_F(reuse_tiers_test, new_memory_has_the_order_that_its_upstream_promises) {
  pool_resource r{upstream, {.limit = 2 * MiB, .cross_stream = gpumem::reuse_policy::ordered}};
  auto* const p = r.allocate(a, 1 * MiB);
  EXPECT_FALSE(can_have(r, b, 1 * MiB)) << "it was granted in the order of a";
  gpumem::event given{device};
  given.record(a);
  b.wait(given);
  EXPECT_TRUE(can_have(r, b, 1 * MiB));
  r.deallocate(a, p, 1 * MiB);
  pool_resource plain{gpumem::cuda_resource{device}, {.limit = 2 * MiB, .cross_stream = gpumem::reuse_policy::ordered}};
  auto* const q = plain.allocate(a, 1 * MiB);
  auto* const other = plain.allocate(b, 1 * MiB);
  plain.deallocate(a, q, 1 * MiB);
  plain.deallocate(b, other, 1 * MiB);
}

TEST_F(reuse_tiers_test, host_gets_only_complete_memory) {
  pool_resource r{upstream, {.initial_size = 1 * MiB, .limit = 1 * MiB}};
  simulator::checked checked{r};
  auto* const p = freed_in_use(checked, a, 1 * MiB);
  EXPECT_THROW((void)checked.allocate_sync(1 * MiB), gpumem::out_of_memory);
  simulator::run_until_idle();
  EXPECT_EQ(checked.allocate_sync(1 * MiB), p);
  checked.deallocate_sync(p, 1 * MiB);
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p) << "a host free needs no order";
  checked.deallocate(b, p, 1 * MiB);
}

TEST_F(reuse_tiers_test, recorded_use_is_waited_for) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  gpumem::event ready{device};
  ready.record(a);
  b.wait(ready);
  simulator::work(b, {simulator::write(p, 1 * MiB)});
  checked.record_use(p, b);
  checked.deallocate(a, p, 1 * MiB);
  EXPECT_EQ(checked.allocate(a, 1 * MiB), p);
  EXPECT_EQ(r.statistics().reuse_same_stream, 0u);
  EXPECT_EQ(r.statistics().reuse_waited, 1u);
  checked.deallocate(a, p, 1 * MiB);
}

TEST_F(reuse_tiers_test, memory_used_by_six_streams_is_reused_after_one_wait) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  gpumem::event ready{device};
  ready.record(a);
  std::vector<gpumem::stream> users;
  for (int i = 0; i < 6; ++i) {
    auto& user = users.emplace_back(device);
    user.wait(ready);
    simulator::work(user, {simulator::read(p, 1 * MiB)});
    checked.record_use(p, user);
  }
  EXPECT_FALSE(can_have(r, b, 1)); // under memory pressure: the free records an event at once
  checked.deallocate(a, p, 1 * MiB);
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  EXPECT_EQ(r.statistics().reuse_waited, 1u);
  checked.deallocate(b, p, 1 * MiB);
}

TEST_F(reuse_tiers_test, capturing_stream_is_refused_and_its_frees_are_completed_later) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  auto* const p = r.allocate(a, 1 * MiB);
  a.begin_capture();
  EXPECT_EQ(r.try_allocate(a, 1).error().reason, outcome::capture_unsupported);
  r.deallocate(a, p, 1 * MiB);
  EXPECT_FALSE(r.find(p)->live);
  EXPECT_EQ(r.statistics().live, 0u);
  EXPECT_EQ(r.statistics().allocated, 1 * MiB) << "not free yet";
  gpumem::driver_api::driver().graph_destroy(a.end_capture());
  EXPECT_TRUE(can_have(r, a, 1 * MiB));
}

TEST_F(reuse_tiers_test, coalesced_memory_is_ordered_after_the_uses_of_all_its_parts) {
  gpumem::stream c{device};
  pool_resource r{upstream, {.initial_size = 64 * MiB, .limit = 64 * MiB}};
  simulator::checked checked{r};
  auto* const rest = checked.allocate(a, 61 * MiB); // most of it: the pool stays under memory pressure
  void* parts[3];
  for (auto*& part : parts) part = checked.allocate(a, 1 * MiB);
  gpumem::event ready{device};
  ready.record(a);
  EXPECT_FALSE(can_have(r, c, 1 * MiB)); // under memory pressure
  cuda::stream_ref const users[] = {a, b, c};
  b.wait(ready);
  c.wait(ready);
  for (int i = 0; i < 3; ++i) {
    simulator::work(users[i], {simulator::write(parts[i], 1 * MiB)});
    checked.deallocate(users[i], parts[i], 1 * MiB);
  }
  gpumem::stream d{device};
  auto* const whole = checked.allocate(d, 3 * MiB);
  EXPECT_EQ(whole, parts[0]);
  EXPECT_EQ(r.statistics().coalesces, 2u);
  EXPECT_EQ(r.statistics().reuse_waited, 1u);
  checked.deallocate(d, whole, 3 * MiB);
  checked.deallocate(a, rest, 61 * MiB);
}

} // namespace
