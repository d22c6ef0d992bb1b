// What calls cost, counted: allocations on the host, driver calls, records.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

import gpumem;

// Where this program's own code lies: the simulated device, a library, allocates too.
extern "C" char const __executable_start;
extern "C" char const etext;

namespace {
thread_local std::uint64_t host_allocations = 0;
} // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  auto const* const caller = static_cast<char const*>(__builtin_return_address(0));
  if (caller >= &__executable_start && caller < &etext) ++host_allocations;
  if (void* const p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc{};
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

namespace simulator = gpumem::simulator;
using gpumem::pool_resource;
constexpr std::size_t MiB = std::size_t{1} << 20;

class pool_counts : public gpumem_test::simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  gpumem_test::told_upstream upstream;

  template <class Pool> static auto paths_of(Pool& pool) {
    return static_cast<gpumem::detail::pool_state*>(pool.services().state)->engine().read_paths();
  }
};

// Frees of every kind, in an order that joins, leaves gaps, spans streams, is under pressure and past the threshold.
TEST_F(pool_counts, a_free_allocates_nothing_on_the_host) {
  pool_resource r{upstream, {.limit = 8 * MiB, .release_threshold = 4 * MiB}};
  std::vector<void*> blocks;
  while (auto const p = r.try_allocate(a, 64 * 1024)) blocks.push_back(*p);
  ASSERT_EQ(blocks.size(), 128u);
  auto const before = host_allocations;
  for (std::size_t start : {0, 1}) {
    for (auto i = start; i < blocks.size(); i += 2) {
      if (i % 3 == 0) r.deallocate(b, blocks[i], 64 * 1024);
      if (i % 3 == 1) r.deallocate(a, blocks[i]);
      if (i % 3 == 2) r.deallocate_sync(blocks[i], 64 * 1024);
    }
  }
  EXPECT_EQ(host_allocations, before);
  EXPECT_EQ(r.figures().live, 0u);
}

TEST_F(pool_counts, a_hit_of_the_own_stream_makes_no_driver_call) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  r.deallocate(a, r.allocate(a, 1000), 1000);
  r.deallocate(b, r.allocate(b, 1000), 1000);
  auto const before = gpumem::driver_calls();
  constexpr int few = 500; // fewer frees than after which a record is due
  for (int i = 0; i < few; ++i) r.deallocate(a, r.allocate(a, 1000), 1000);
  EXPECT_EQ(gpumem::driver_calls(), before);
}

TEST_F(pool_counts, a_magazine_hit_takes_no_lock_of_the_pool) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  for (int i = 0; i < 2; ++i) r.deallocate(a, r.allocate(a, 1000), 1000);
  auto const paths = paths_of(r);
  auto const calls = gpumem::driver_calls(), allocations = host_allocations;
  constexpr std::uint64_t few = 50; // one free in 64 looks for evidence
  for (std::uint64_t i = 0; i < few; ++i) r.deallocate(a, r.allocate(a, 1000), 1000);
  EXPECT_EQ(host_allocations, allocations);
  EXPECT_EQ(gpumem::driver_calls(), calls);
  EXPECT_EQ(paths_of(r).locked_calls, paths.locked_calls);
  EXPECT_EQ(paths_of(r).near_hits, paths.near_hits + few);
}

// Blocks that are too large to be kept near a thread.
TEST_F(pool_counts, a_hit_of_the_shelves_takes_one_lock) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  for (int i = 0; i < 2; ++i) r.deallocate(a, r.allocate(a, 8 * MiB), 8 * MiB);
  auto const paths = paths_of(r);
  auto const calls = gpumem::driver_calls("cuEventRecord") + gpumem::driver_calls("cuEventQuery");
  auto const allocations = host_allocations;
  constexpr std::uint64_t few = 10;
  for (std::uint64_t i = 0; i < few; ++i) r.deallocate(a, r.allocate(a, 8 * MiB), 8 * MiB);
  EXPECT_EQ(host_allocations, allocations);
  EXPECT_EQ(gpumem::driver_calls("cuEventRecord") + gpumem::driver_calls("cuEventQuery"), calls);
  EXPECT_EQ(paths_of(r).locked_calls, paths.locked_calls + 2 * few);
  EXPECT_EQ(paths_of(r).near_hits, paths.near_hits);
}

TEST_F(pool_counts, few_frees_leave_a_record) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  r.deallocate(b, r.allocate(b, 1000), 1000);
  auto const before = gpumem::driver_calls("cuEventRecord");
  for (int i = 0; i < 64'000; ++i) r.deallocate(a, r.allocate(a, 1000), 1000);
  EXPECT_LE(gpumem::driver_calls("cuEventRecord") - before, 1000u);
  EXPECT_GT(gpumem::driver_calls("cuEventRecord") - before, 0u);
}

TEST_F(pool_counts, streams_that_come_and_go_leave_no_events_behind) {
  pool_resource r{upstream};
  auto const create = gpumem_test::driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
  auto const destroy = gpumem_test::driver_function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2");
  auto const before = gpumem::driver_calls("cuEventCreate");
  for (int i = 0; i < 100; ++i) {
    CUstream made = nullptr;
    create(&made, CU_STREAM_NON_BLOCKING);
    cuda::stream_ref const s{made};
    r.deallocate(s, r.allocate(s, 1000), 1000);
    destroy(made);
  }
  EXPECT_LE(gpumem::driver_calls("cuEventCreate") - before, 8u);
}

} // namespace
