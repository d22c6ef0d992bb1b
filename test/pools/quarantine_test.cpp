// The quarantine: its size, how long blocks stay, how it is counted, and that no block is lost.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

import gpumem;
#include "hardened_pool.hpp"

namespace {

using namespace gpumem_test;
using gpumem::hardening_options;
using gpumem::misuse;
using gpumem::outcome;
using gpumem::pool_options;
using gpumem::pool_resource;
using pool = pool_resource<recording_upstream>;

constexpr std::size_t guards = 512; // bytes around each block

class quarantine_test : public hardened_test {
protected:
  recording_upstream upstream;
};

TEST_F(quarantine_test, quarantine_holds_its_bytes_and_counts_them) {
  pool r{upstream, {.hardened = {.enabled = true, .quarantine = 10 * (1024 + guards)}}};
  for (int i = 0; i < 100; ++i) {
    r.deallocate(s, r.allocate(s, 1024), 1024);
    simulator::run_until_idle();
    // One block may be entering and one leaving.
    ASSERT_LE(r.statistics().quarantined, 12 * (1024 + guards));
  }
  auto const f = r.statistics();
  EXPECT_GE(f.quarantined, 10 * (1024 + guards));
  EXPECT_EQ(f.allocated, f.quarantined);
  EXPECT_EQ(f.live, 0u);
  EXPECT_EQ(f.peak_live, 1024u);
  EXPECT_EQ(f.allocations, 100u);
  EXPECT_EQ(f.frees, 100u);
  EXPECT_EQ(f.free + f.allocated, f.reserved);
}

TEST_F(quarantine_test, quarantined_memory_is_not_reused) {
  pool r{upstream, {.hardened = {.enabled = true, .quarantine = 1 * MiB}}};
  auto* const p = r.allocate(s, 1000);
  r.deallocate(s, p, 1000);
  simulator::run_until_idle();
  std::vector<void*> others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(r.allocate(s, 1000));
    EXPECT_NE(others.back(), p);
  }
  ASSERT_TRUE(synchronized(r));
  others.push_back(r.allocate(s, 1000));
  EXPECT_EQ(others.back(), p) << "the best fit again";
  for (auto* const each : others) r.deallocate(s, each, 1000);
}

TEST_F(quarantine_test, find_describes_blocks_in_quarantine) {
  pool r{upstream, {.hardened = {.enabled = true}}};
  auto* const p = static_cast<char*>(r.allocate(s, 1000));
  auto const live = r.find(p + 999);
  ASSERT_TRUE(live);
  EXPECT_EQ(live->base, p);
  EXPECT_EQ(live->bytes, 1000u);
  EXPECT_EQ(live->allocated, 1024u + guards);
  EXPECT_EQ(live->stream, s.key().identity().id());
  EXPECT_TRUE(live->live);
  r.deallocate(s, p, 1000);
  auto const kept = r.find(p);
  ASSERT_TRUE(kept);
  EXPECT_FALSE(kept->live);
  EXPECT_EQ(kept->bytes, 0u);
}

TEST_F(quarantine_test, trim_releases_complete_memory_of_the_quarantine) {
  pool r{upstream, {.hardened = {.enabled = true}}};
  r.deallocate(s, r.allocate(s, 100 * KiB), 100 * KiB);
  EXPECT_EQ(r.trim(), 0u) << "no work has run";
  EXPECT_GT(r.statistics().quarantined, 0u);
  // First the copies of the check run, then the chunk's own event.
  for (int i = 0; i < 3 && r.statistics().reserved > 0; ++i) {
    simulator::run_until_idle();
    r.trim();
  }
  EXPECT_EQ(r.statistics().quarantined, 0u);
  EXPECT_EQ(r.statistics().reserved, 0u);
}

TEST_F(quarantine_test, reserve_and_limit_include_the_guards) {
  pool r{upstream, {.initial_size = 1 * MiB, .hardened = {.enabled = true}}};
  EXPECT_EQ(r.statistics().reserved, 1 * MiB);
  EXPECT_EQ(r.reserve(2 * MiB), 1 * MiB);
  r.set_limit(2 * MiB);
  EXPECT_EQ(r.try_allocate(s, 2 * MiB).error().reason, outcome::too_large) << "including its guards";
  EXPECT_TRUE(r.try_allocate(s, 2 * MiB - 1).error().reason == outcome::too_large);
  EXPECT_EQ(r.statistics().failures, 2u);
  EXPECT_EQ(r.try_allocate(s, PTRDIFF_MAX).error().reason, outcome::too_large);
}

TEST_F(quarantine_test, closed_pool_checks_its_quarantine_in_the_background) {
  {
    pool r{upstream, {.hardened = {.enabled = true}}};
    auto* const p = static_cast<char*>(r.allocate(s, 1000));
    scribble(s, p + 1000, 1);
    r.deallocate(s, p, 1000);
  }
  EXPECT_TRUE(upstream.state().returns().empty()) << "the destructor does not wait";
  EXPECT_TRUE(wait_for_releases(upstream.state(), 1));
  EXPECT_EQ(only().what, misuse::kind::overrun);
}

TEST_F(quarantine_test, last_block_of_a_pool_without_handles_ends_the_quarantine) {
  std::optional<pool> r{std::in_place, upstream, pool_options{.hardened = {.enabled = true}}};
  auto block = r->acquire(s, 1000).wait();
  auto other = r->acquire(s, 1000).wait();
  auto const services = r->services();
  r.reset();
  EXPECT_EQ(services.table->try_allocate(services.state, s, 100, 256).error().reason, outcome::closed);
  EXPECT_EQ(only().what, misuse::kind::use_after_close);
  other.reset();
  EXPECT_TRUE(upstream.state().returns().empty());
  std::thread{[mine = std::move(block)]() mutable { mine.reset(); }}.join();
  EXPECT_TRUE(wait_for_releases(upstream.state(), 1));
}

TEST_F(quarantine_test, memory_of_a_dead_foreign_stream_leaves_the_quarantine) {
  static auto* const create = driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
  static auto* const destroy = driver_function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2");
  CUstream foreign = nullptr;
  create(&foreign, CU_STREAM_NON_BLOCKING);
  {
    pool r{upstream, {.hardened = {.enabled = true}}};
    auto* const p = r.allocate(gpumem::stream_ref{foreign}, 1000);
    r.deallocate(gpumem::stream_ref{foreign}, p, 1000);
    destroy(foreign);
  }
  EXPECT_TRUE(wait_for_releases(upstream.state(), 1));
}

TEST_F(quarantine_test, forked_child_does_not_change_the_quarantine) {
  pool r{upstream, {.hardened = {.enabled = true}}};
  auto* const p = r.allocate(s, 1000);
  auto* const q = r.allocate(s, 1000);
  r.deallocate(s, q, 1000);
  auto const child = fork();
  if (child == 0) {
    auto const refused = r.try_allocate(s, 1000);
    r.deallocate(s, p, 1000);
    bool const complete = r.synchronize(long_enough);
    _exit(!refused && refused.error().reason == outcome::device_lost && r.trim() == 0 && !complete ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  r.deallocate(s, p, 1000);
}

// Ends the process with a static pool, a live block, and a quarantined block whose work is pending.
[[noreturn]] void exit_with_static_pool() {
  static gpumem::stream const stream{gpumem::device{0}};
  static pool r{recording_upstream{}, {.hardened = {.enabled = true}}};
  static auto const block = r.acquire(stream, 1000).wait();
  auto* const p = r.allocate(stream, 1000);
  simulator::work(stream, {simulator::write(p, 1000)});
  r.deallocate(stream, p, 1000);
  { // the library's thread is busy with this one
    pool other{recording_upstream{}, {.hardened = {.enabled = true}}};
    other.deallocate(stream, other.allocate(stream, 1000), 1000);
  }
  std::exit(7);
}

using quarantine_death_test = quarantine_test;

TEST_F(quarantine_death_test, process_with_a_quarantine_exits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_static_pool(), testing::ExitedWithCode(7), "");
}

// The pool must add no work to the graph, however the capture was begun.
class quarantine_in_capture : public quarantine_test, public testing::WithParamInterface<int> {
protected:
  void begin(CUstream on) {
    if (GetParam() == 0) return s.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_begin_capture(on, CU_STREAM_CAPTURE_MODE_RELAXED),
                              "begin");
  }
  CUgraph end(CUstream on) {
    if (GetParam() == 0) return s.end_capture();
    CUgraph made = nullptr;
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_end_capture(on, &made), "end");
    return made;
  }
  static std::size_t nodes_of(CUgraph graph) {
    static auto* const nodes = driver_function<CUresult(CUgraph, CUgraphNode*, std::size_t*)>("cuGraphGetNodes");
    std::size_t count = 99;
    nodes(graph, nullptr, &count);
    return count;
  }
};

TEST_P(quarantine_in_capture, free_in_a_capture_adds_no_work_and_is_completed_later) {
  static auto* const create = driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
  CUstream raw = s.get();
  if (GetParam() == 2) create(&raw, CU_STREAM_NON_BLOCKING);
  gpumem::stream_ref const on{raw};
  pool r{upstream, {.hardened = {.enabled = true, .quarantine = 0}}};
  auto* const p = r.allocate(on, 1000);
  auto* const q = r.allocate(on, 1000);
  begin(raw);
  EXPECT_EQ(r.try_allocate(on, 1000).error().reason, outcome::capture_unsupported);
  r.deallocate(on, p, 1000);
  r.deallocate(on, p, 1000);
  EXPECT_EQ(only().what, misuse::kind::double_free);
  r.deallocate(t, r.allocate(t, 10), 10); // calls on another stream succeed
  auto const graph = end(raw);
  EXPECT_EQ(nodes_of(graph), 0u);
  gpumem::driver_api::driver().graph_destroy(graph);
  r.deallocate(on, q, 1000);
  simulator::run_until_idle();
  EXPECT_TRUE(synchronized(r));
  EXPECT_EQ(r.statistics().quarantined, 0u);
  EXPECT_EQ(r.statistics().failures, 0u);
}

INSTANTIATE_TEST_SUITE_P(begun, quarantine_in_capture, testing::Values(0, 1, 2));

// If the host can access the memory, the pool writes and checks the patterns on the host.
class quarantine_of_host_memory : public hardened_test {
protected:
  template <class Upstream> void expect_quarantined(Upstream memory) {
    pool_resource<Upstream> r{memory, {.hardened = {.enabled = true}}};
    auto* const p = static_cast<char*>(r.allocate(s, 1000));
    auto* const q = static_cast<char*>(r.allocate_sync(1000));
    EXPECT_EQ(static_cast<unsigned char>(q[999]), 0xfa) << "filled at once";
    p[1000] = 1;
    q[-1] = 1;
    r.deallocate(s, p, 1000);
    r.deallocate_sync(q, 1000);
    r.deallocate(s, p, 1000);
    EXPECT_EQ(only().what, misuse::kind::double_free);
    EXPECT_TRUE(synchronized(r));
    auto const found = take_reports();
    ASSERT_EQ(found.size(), 2u);
    for (auto const& each : found) {
      EXPECT_EQ(each.what, each.pointer == p ? misuse::kind::overrun : misuse::kind::underrun);
    }
    EXPECT_EQ(r.statistics().quarantined, 0u);
  }
};

TEST_F(quarantine_of_host_memory, pinned_memory_is_quarantined) { expect_quarantined(gpumem::pinned_resource{}); }
TEST_F(quarantine_of_host_memory, managed_memory_is_quarantined) { expect_quarantined(gpumem::managed_resource{}); }
TEST_F(quarantine_of_host_memory, pageable_memory_is_quarantined) { expect_quarantined(gpumem::host_resource{}); }

} // namespace
