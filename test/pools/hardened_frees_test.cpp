// Frees that a hardened pool refuses: of blocks that are already free, and of pointers that are no block.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "hardened_pool.hpp"

namespace {

using namespace gpumem_test;
using gpumem::misuse;
using pool = gpumem::pool_resource<recording_upstream>;

class hardened_frees : public hardened_test {
protected:
  recording_upstream upstream;
};

TEST_F(hardened_frees, double_free_of_a_quarantined_block_is_reported) {
  pool r{upstream, hardened()};
  auto* const p = r.allocate(s, 1000);
  r.deallocate(s, p, 1000);
  r.deallocate(t, p, 1000);
  auto const found = only();
  EXPECT_EQ(found.what, misuse::kind::double_free);
  EXPECT_EQ(found.pointer, p);
  EXPECT_EQ(found.stream, t.key().identity().id());
  EXPECT_EQ(found.seen.size(), 2u);
  EXPECT_EQ(r.statistics().frees, 1u);
  r.record_use(p, t);
  EXPECT_EQ(only().what, misuse::kind::recorded_late);
}

TEST_F(hardened_frees, double_free_after_the_quarantine_is_reported) {
  pool r{upstream, hardened()};
  auto* const p = r.allocate(s, 1000);
  r.deallocate(s, p, 1000);
  ASSERT_TRUE(synchronized(r));
  r.deallocate(s, p);
  auto const found = only();
  EXPECT_EQ(found.what, misuse::kind::double_free);
  EXPECT_EQ(found.expected, 1000u);
}

TEST_F(hardened_frees, double_free_of_reused_memory_is_reported) {
  pool r{upstream, hardened({.quarantine = 0})};
  auto* const p = r.allocate(s, 1000);
  r.deallocate(s, p, 1000);
  ASSERT_TRUE(synchronized(r));
  auto* const again = r.allocate(t, 900);
  ASSERT_EQ(again, p);
  r.deallocate(s, p, 1000);
  EXPECT_EQ(only().what, misuse::kind::double_free) << "the size that was freed before";
  r.deallocate(s, p, 800);
  EXPECT_EQ(only().what, misuse::kind::wrong_size) << "a size that no block there had";
  r.deallocate(s, p);
  r.deallocate(t, again, 900);
  auto const found = only();
  EXPECT_EQ(found.what, misuse::kind::double_free) << "the history shows which free was first";
  ASSERT_EQ(found.seen.size(), 4u);
  EXPECT_EQ(found.seen[3].stream, s.key().identity().id());
}

TEST_F(hardened_frees, free_of_a_foreign_pointer_inside_or_outside_a_block_is_reported) {
  pool r{upstream, hardened()};
  auto* const p = bytes_at(r.allocate(s, 1000));
  int elsewhere = 0;
  r.deallocate(s, &elsewhere, 4);
  EXPECT_EQ(only().what, misuse::kind::foreign_pointer);
  for (auto* const inside : {p + 256, p - 256, p + 1000}) {
    r.deallocate(s, inside);
    auto const found = only();
    EXPECT_EQ(found.what, misuse::kind::foreign_pointer);
    EXPECT_EQ(found.expected, 1000u);
  }
  r.record_use(&elsewhere, s);
  EXPECT_EQ(only().what, misuse::kind::foreign_pointer);
  r.deallocate(s, p, 1000);
}

TEST_F(hardened_frees, only_one_of_several_concurrent_frees_succeeds) {
  pool r{upstream, hardened()};
  constexpr int threads = 4, rounds = 200;
  for (int round = 0; round < rounds; ++round) {
    auto* const p = r.allocate(s, 1000);
    std::atomic<int> ready{0};
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) {
      all.emplace_back([&] {
        ++ready;
        while (ready < threads) std::this_thread::yield();
        r.deallocate(s, p, 1000);
      });
    }
    for (auto& each : all) each.join();
    auto const found = take_reports();
    for (auto const& each : found) ASSERT_EQ(each.what, misuse::kind::double_free) << each.offset;
    ASSERT_EQ(found.size(), threads - 1u);
    simulator::run_until_idle();
  }
  EXPECT_EQ(r.statistics().frees, std::uint64_t{rounds});
}

} // namespace
