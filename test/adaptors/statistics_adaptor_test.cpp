// Counters: values, peaks, totals, nesting, threads.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1024} * 1024;
constexpr std::int64_t imib = std::int64_t{1024} * 1024;

using gpumem::counter;
using gpumem::allocation_counts;

class statistics_adaptor : public simulated {
protected:
  void* take(std::size_t bytes) { return subject_.allocate_sync(bytes); }
  void give(void* p, std::size_t bytes) { subject_.deallocate_sync(p, bytes); }
  gpumem::statistics_adaptor<gpumem::host_resource> subject_{gpumem::host_resource{}};
};

TEST_F(statistics_adaptor, counters_begin_at_zero) { EXPECT_EQ(subject_.counters(), allocation_counts{}); }

TEST_F(statistics_adaptor, counts_current_peak_and_total) {
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(take(10 * mib));
  for (int i = 0; i < 5; ++i) give(blocks[i], 10 * mib);
  for (int i = 0; i < 10; ++i) blocks.push_back(take(10 * mib));
  EXPECT_EQ(subject_.counters(), (allocation_counts{{150 * imib, 150 * imib, 200 * imib}, {15, 15, 20}}));
  for (std::size_t i = 5; i < blocks.size(); ++i) give(blocks[i], 10 * mib);
  EXPECT_EQ(subject_.counters(), (allocation_counts{{0, 150 * imib, 200 * imib}, {0, 15, 20}}));
}

TEST_F(statistics_adaptor, counters_of_one_thread_are_exact_for_small_blocks) {
  void* const a = take(100);
  void* const b = take(50);
  give(b, 50);
  give(a, 100);
  void* const c = take(120);
  EXPECT_EQ(subject_.counters(), (allocation_counts{{120, 150, 270}, {1, 2, 3}}));
  give(c, 120);
}

TEST_F(statistics_adaptor, failed_allocation_is_not_counted) {
  EXPECT_THROW(take(std::size_t{1} << 50), gpumem::out_of_memory);
  EXPECT_EQ(take(0), nullptr);
  EXPECT_EQ(subject_.counters(), allocation_counts{});
}

TEST_F(statistics_adaptor, nested_counters_are_added_to_their_parent) {
  void* const a = take(1000);
  EXPECT_EQ(subject_.push_counters(), (allocation_counts{{1000, 1000, 1000}, {1, 1, 1}}));
  EXPECT_EQ(subject_.counters(), allocation_counts{});
  void* const b = take(500);
  give(b, 500);
  give(a, 1000);
  void* const c = take(200);
  EXPECT_EQ(subject_.push_counters(), (allocation_counts{{-800, 500, 700}, {0, 1, 2}}));
  void* const d = take(3000);
  give(d, 3000);
  EXPECT_EQ(subject_.pop_counters(), (allocation_counts{{0, 3000, 3000}, {0, 1, 1}}));
  EXPECT_EQ(subject_.pop_counters(), (allocation_counts{{-800, 2200, 3700}, {0, 1, 3}}));
  EXPECT_EQ(subject_.counters(), (allocation_counts{{200, 3200, 4700}, {1, 2, 4}}));
  give(c, 200);
}

TEST_F(statistics_adaptor, last_counters_cannot_be_popped) {
  EXPECT_THROW(subject_.pop_counters(), std::out_of_range);
  subject_.push_counters();
  subject_.pop_counters();
  EXPECT_THROW(subject_.pop_counters(), std::out_of_range);
}

TEST_F(statistics_adaptor, two_stacked_adaptors_both_count) {
  gpumem::statistics_adaptor<decltype(subject_)> outer{subject_}; // without the type this would be a copy
  void* const a = outer.allocate_sync(mib);
  void* const b = outer.allocate_sync(mib);
  outer.deallocate_sync(a, mib);
  give(b, mib); // bypasses the outer one
  EXPECT_EQ(outer.counters(), (allocation_counts{{imib, 2 * imib, 2 * imib}, {1, 2, 2}}));
  EXPECT_EQ(subject_.counters(), (allocation_counts{{0, 2 * imib, 2 * imib}, {0, 2, 2}}));
  EXPECT_TRUE(outer.upstream() == subject_);
}

TEST_F(statistics_adaptor, totals_of_threads_are_exact_and_peaks_close) {
  constexpr int threads = 80; // more threads than slots
  constexpr std::int64_t rounds = 200, size = 1000;
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([this] {
      for (int round = 0; round < rounds; ++round) give(take(size), size);
    });
  }
  for (auto& thread : running) thread.join();
  auto const seen = subject_.counters();
  EXPECT_EQ(seen.bytes.value, 0);
  EXPECT_EQ(seen.bytes.total, threads * rounds * size);
  EXPECT_EQ(seen.allocations.value, 0);
  EXPECT_EQ(seen.allocations.total, threads * rounds);
  EXPECT_GE(seen.bytes.peak, size);
  EXPECT_LE(seen.bytes.peak, threads * (size + 64 * 1024));
}

TEST_F(statistics_adaptor, block_freed_by_another_thread_is_counted_once) {
  std::vector<void*> blocks;
  std::thread{[&] {
    for (int i = 0; i < 100; ++i) blocks.push_back(take(mib));
  }}.join();
  std::thread{[&] {
    for (auto* const p : blocks) give(p, mib);
  }}.join();
  EXPECT_EQ(subject_.counters(), (allocation_counts{{0, 100 * imib, 100 * imib}, {0, 100, 100}}));
}

} // namespace
