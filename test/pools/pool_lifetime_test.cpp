// The lifetime of a pool, and the release of its chunks.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::recording_upstream;
namespace simulator = gpumem::simulator;
using pool = pool_resource<recording_upstream>;
constexpr std::size_t MiB = std::size_t{1} << 20;

class pool_lifetime : public gpumem_test::simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream s{device};
  recording_upstream upstream;
};

TEST_F(pool_lifetime, last_handle_releases_all_memory) {
  {
    pool r{upstream, {.initial_size = 1 * MiB}};
    auto const copy = r;
    r.deallocate(s, r.allocate(s, 5 * MiB), 5 * MiB);
    s.synchronize();
  }
  ASSERT_EQ(upstream.state().returns().size(), 2u);
  EXPECT_TRUE(upstream.state().returns()[0].by_host);
}

TEST_F(pool_lifetime, live_block_keeps_the_pool) {
  std::optional<pool> r{std::in_place, upstream};
  auto block = r->acquire(s, 1000).wait();
  r.reset();
  EXPECT_TRUE(upstream.state().returns().empty());
  simulator::work(s, {simulator::write(block.data(), 1000)});
  block.reset();
  EXPECT_TRUE(upstream.state().returns().empty()) << "the host has not seen the work complete";
  EXPECT_TRUE(gpumem_test::wait_for_releases(upstream.state(), 1));
}

TEST_F(pool_lifetime, pool_is_released_when_another_thread_frees_its_last_block) {
  std::optional<pool> r{std::in_place, upstream};
  std::vector<gpumem::allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(r->acquire(s, 1000).wait());
  r.reset();
  std::thread{[mine = std::move(blocks)]() mutable { mine.clear(); }}.join();
  EXPECT_TRUE(gpumem_test::wait_for_releases(upstream.state(), 1));
}

TEST_F(pool_lifetime, memory_freed_by_a_dead_foreign_stream_is_released) {
  static auto* const create = gpumem_test::driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
  static auto* const destroy = gpumem_test::driver_function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2");
  CUstream foreign = nullptr;
  create(&foreign, CU_STREAM_NON_BLOCKING);
  {
    pool r{upstream};
    auto* const p = r.allocate(cuda::stream_ref{foreign}, 1000);
    simulator::work(cuda::stream_ref{foreign}, {simulator::write(p, 1000)});
    r.deallocate(cuda::stream_ref{foreign}, p, 1000);
    destroy(foreign);
  }
  EXPECT_TRUE(gpumem_test::wait_for_releases(upstream.state(), 1));
}

TEST_F(pool_lifetime, exception_of_the_upstream_loses_no_memory) {
  pool r{upstream, {.initial_size = 1 * MiB}};
  upstream.state().on_draw = [] { throw std::bad_alloc{}; };
  EXPECT_EQ(r.try_allocate(s, 2 * MiB).error().reason, outcome::exhausted);
  EXPECT_THROW((void)r.allocate(s, 2 * MiB), gpumem::out_of_memory);
  upstream.state().on_draw = nullptr;
  auto* const p = r.allocate(s, 2 * MiB);
  EXPECT_EQ(r.statistics().failures, 2u);
  r.deallocate(s, p, 2 * MiB);
}

TEST_F(pool_lifetime, no_lock_is_held_during_upstream_calls_and_others_wait_for_growth) {
  pool r{upstream, {.limit = 2 * MiB}};
  std::thread other;
  std::atomic<bool> begun{false};
  void* second = nullptr;
  upstream.state().on_draw = [&] {
    EXPECT_EQ(r.statistics().allocations, 0u);
    upstream.state().on_draw = nullptr;
    other = std::thread{[&] {
      begun = true;
      second = r.try_allocate(s, 1000).value_or(nullptr);
    }};
    while (!begun) std::this_thread::yield();
  };
  auto* const first = r.allocate(s, 1000);
  other.join();
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(upstream.state().draws().size(), 1u);
  r.deallocate(s, first, 1000);
  r.deallocate(s, second, 1000);
}

TEST_F(pool_lifetime, chunks_beyond_the_release_threshold_go_back_in_the_background) {
  pool r{upstream, {.release_threshold = 2 * MiB}};
  auto* const p = r.allocate(s, 2 * MiB);
  auto* const q = r.allocate(s, 4 * MiB);
  simulator::work(s, {});
  r.deallocate(s, q, 4 * MiB);
  r.deallocate(s, p, 2 * MiB);
  EXPECT_TRUE(upstream.state().returns().empty());
  ASSERT_TRUE(gpumem_test::wait_for_releases(upstream.state(), 1));
  EXPECT_EQ(upstream.state().returns()[0].bytes, 4 * MiB);
}

TEST_F(pool_lifetime, forked_child_allocates_and_frees_nothing) {
  pool r{upstream};
  auto* const p = r.allocate(s, 1000);
  auto const child = fork();
  if (child == 0) {
    auto const refused = r.try_allocate(s, 1000);
    r.deallocate(s, p, 1000);
    auto const trimmed = r.trim();
    _exit(!refused && refused.error().reason == outcome::device_lost && trimmed == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  r.deallocate(s, p, 1000);
}

// Ends the process with a static pool, a live block and pending work.
[[noreturn]] void exit_with_static_pool() {
  gpumem::pool_options options;
  options.release_threshold = 0;
  static gpumem::stream const stream{gpumem::device{0}};
  static pool r{recording_upstream{}, options};
  static auto const block = r.acquire(stream, 1000).wait();
  auto* const p = r.allocate(stream, 1000);
  simulator::work(stream, {simulator::write(p, 1000)});
  r.deallocate(stream, p, 1000);
  std::exit(7);
}

using pool_exit_death_test = pool_lifetime;

TEST_F(pool_exit_death_test, static_pools_do_not_hang_or_crash_at_exit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_static_pool(), testing::ExitedWithCode(7), "");
}

} // namespace
