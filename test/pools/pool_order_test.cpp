// Reuse is proven ordered: each rung of the ladder, and each schedule that breaks a naive pool.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstdint>

import gpumem;

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::told_upstream;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

class pool_order : public gpumem_test::simulated_test {
protected:
  gpumem::device device{0};
  gpumem::stream a{device}, b{device};
  told_upstream upstream;
};

TEST_F(pool_order, the_own_stream_reuses_at_once) {
  pool_resource r{upstream};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  simulator::work(a, {simulator::write(p, 1 * MiB)});
  checked.deallocate(a, p, 1 * MiB);
  auto const calls = gpumem::driver_calls();
  EXPECT_EQ(r.allocate(a, 1 * MiB), p);
  r.deallocate(a, p, 1 * MiB);
  EXPECT_EQ(gpumem::driver_calls(), calls);
  EXPECT_EQ(r.figures().reuse_own, 1u);
}

TEST_F(pool_order, an_event_orders_streams) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  simulator::work(a, {simulator::write(p, 1 * MiB)});
  checked.deallocate(a, p, 1 * MiB);
  gpumem::event freed{device};
  freed.record(a);
  b.wait(freed);
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  EXPECT_EQ(r.figures().reuse_ordered, 1u);
  checked.deallocate(b, p, 1 * MiB);
}

TEST_F(pool_order, an_event_recorded_before_the_free_orders_nothing) {
  pool_resource r{upstream, {.limit = 1 * MiB, .cross_stream = gpumem::reuse::own}};
  auto* const p = r.allocate(a, 1 * MiB);
  gpumem::event early{device};
  early.record(a);
  r.deallocate(a, p, 1 * MiB);
  b.wait(early);
  EXPECT_FALSE(r.try_allocate(b, 1 * MiB));
}

TEST_F(pool_order, what_the_host_has_seen_complete_goes_to_any_stream) {
  pool_resource r{upstream, {.limit = 1 * MiB}};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  simulator::work(a, {simulator::write(p, 1 * MiB)});
  checked.deallocate(a, p, 1 * MiB);
  a.synchronize();
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  EXPECT_EQ(r.figures().reuse_completed, 1u);
  checked.deallocate(b, p, 1 * MiB);
}

TEST_F(pool_order, a_wait_is_inserted_when_nothing_else_helps) {
  pool_resource r{upstream, {.limit = 2 * MiB}};
  simulator::checked checked{r};
  auto* const p = checked.allocate(a, 1 * MiB);
  auto* const q = checked.allocate(a, 1 * MiB);
  simulator::work(a, {simulator::write(p, 1 * MiB)});
  EXPECT_FALSE(r.try_allocate(b, 1 * MiB)); // from here on under pressure: frees leave evidence
  checked.deallocate(a, p, 1 * MiB);
  auto const records = gpumem::driver_calls("cuEventRecord");
  auto const waits = gpumem::driver_calls("cuStreamWaitEvent");
  EXPECT_EQ(checked.allocate(b, 1 * MiB), p);
  EXPECT_EQ(r.figures().reuse_waited, 1u);
  EXPECT_LE(gpumem::driver_calls("cuEventRecord") - records, 1u);
  EXPECT_EQ(gpumem::driver_calls("cuStreamWaitEvent") - waits, 1u);
  simulator::work(b, {simulator::write(p, 1 * MiB)});
  checked.deallocate(b, p, 1 * MiB);
  checked.deallocate(a, q, 1 * MiB);
}

} // namespace
