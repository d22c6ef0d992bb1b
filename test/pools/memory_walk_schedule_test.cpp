// Copies of a pool's memory beside random calls of two other threads, under schedules that a seed replays.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::detail::memory_copy;
using gpumem::detail::memory_state;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
constexpr std::size_t KiB = 1024;
constexpr std::array<std::size_t, 6> sizes{256, 4 * KiB, 100 * KiB, 300 * KiB, 1024 * KiB, 5 * 1024 * KiB};

struct seen {
  std::size_t running = 0; // calls of the other threads
  std::size_t copies = 0;
  std::size_t undisturbed = 0;  // copies during which no other thread was in a call
  std::size_t beside_calls = 0; // copies during which other threads made calls
  std::size_t pieces = 0;
  std::size_t labels = 0;
};

// Checks what holds for each copy, whatever other threads do.
void check(memory_copy const& copy, bool quiet, seen& all, std::uint64_t seed) {
  std::uintptr_t end = 0;
  std::size_t live = 0;
  for (auto const& each : copy.blocks) {
    auto const base = reinterpret_cast<std::uintptr_t>(each.base);
    ASSERT_GE(base, end) << "blocks overlap, GPUMEM_SEED=" << seed;
    ASSERT_TRUE(each.begins_region || base == end) << "a region has a gap, GPUMEM_SEED=" << seed;
    ASSERT_LE(each.requested, each.bytes) << "GPUMEM_SEED=" << seed;
    // Each thread labels blocks with their size, so a label of an earlier block would show.
    if (each.label) ASSERT_EQ(gpumem::detail::label_text(each.label), std::to_string(each.requested)) << seed;
    ASSERT_TRUE(each.label == 0 || each.state == memory_state::live) << "GPUMEM_SEED=" << seed;
    all.labels += each.label != 0;
    end = base + each.bytes;
    live += each.state == memory_state::live ? each.requested : 0;
  }
  ++all.copies;
  all.pieces += copy.pieces;
  all.beside_calls += copy.calls_meanwhile != 0;
  if (!quiet || copy.calls_meanwhile != 0) return;
  ++all.undisturbed;
  ASSERT_EQ(live, copy.statistics.live) << "GPUMEM_SEED=" << seed;
}

void run_program(pool from, gpumem::device where, gpumem::stream const& on, seen& all, std::uint64_t seed) {
  gpumem::device_guard const current{where};
  std::mt19937_64 random{seed};
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (int i = 0; i < 12; ++i) {
    if (blocks.empty() || random() % 3) {
      auto const bytes = sizes[random() % sizes.size()] - random() % 2;
      ++all.running;
      blocks.emplace_back(from.allocate(on, bytes), bytes);
      --all.running;
      if (random() % 2) from.set_label(blocks.back().first, std::to_string(bytes));
    } else {
      auto const at = static_cast<std::ptrdiff_t>(random() % blocks.size());
      ++all.running;
      from.deallocate(on, blocks[static_cast<std::size_t>(at)].first, blocks[static_cast<std::size_t>(at)].second);
      --all.running;
      blocks.erase(blocks.begin() + at);
    }
  }
  ++all.running;
  for (auto const& [pointer, bytes] : blocks) from.deallocate(on, pointer, bytes);
  --all.running;
}

TEST(memory_walk_schedule, copies_hold_beside_calls) {
  gpumem::device const where{0};
  gpumem::device_guard const current{where};
  gpumem::stream const a{where}, b{where};
  seen all;
  test::schedule_seeds const seeds{100};
  seeds.each([&](std::uint64_t seed) {
    gpumem::pool_options options;
    options.shard_per_thread = seed % 2 == 0;
    if (seed % 3 == 0) options.chunk_size = 6 * 1024 * KiB;
    pool from{where, options};
    auto& engine = static_cast<gpumem::detail::pool_state*>(from.services().state)->engine();
    std::vector<std::function<void()>> bodies;
    bodies.emplace_back([&] { run_program(from, where, a, all, seed); });
    bodies.emplace_back([&] { run_program(from, where, b, all, seed + 1000); });
    bodies.emplace_back([&] {
      gpumem::device_guard const here{where};
      for (std::size_t piece : {1u, 2u, 5u, 1000u}) {
        bool const quiet = all.running == 0;
        auto const copy = engine.copy_memory(piece);
        check(copy, quiet && all.running == 0, all, seed);
      }
    });
    gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 4);
    gpumem::simulator::run_until_idle();
    auto const copy = from.copy_memory();
    check(copy, true, all, seed);
    ASSERT_EQ(copy.calls_meanwhile, 0u) << "GPUMEM_SEED=" << seed;
    std::size_t bytes = 0, pages = 0;
    for (auto const& each : copy.blocks) bytes += each.bytes;
    for (auto const& each : copy.pages) pages += each.bytes;
    ASSERT_EQ(bytes, copy.statistics.reserved) << "GPUMEM_SEED=" << seed;
    if (options.chunk_size == 0) ASSERT_EQ(pages, copy.statistics.reserved) << "GPUMEM_SEED=" << seed;
    ASSERT_TRUE(engine.is_consistent()) << "GPUMEM_SEED=" << seed;
  });
  std::printf("%zu copies, %zu of them beside calls and %zu without, in %zu pieces, with %zu labels\n", all.copies,
              all.beside_calls, all.undisturbed, all.pieces, all.labels);
  if (seeds.alone()) return;
  EXPECT_GT(all.beside_calls, all.copies / 5);
  EXPECT_GT(all.undisturbed, all.copies / 5);
  EXPECT_GT(all.pieces, all.copies * 2);
  EXPECT_GT(all.labels, all.copies / 2);
}

} // namespace
