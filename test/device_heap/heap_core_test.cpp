// Single cases of warps that allocate and free blocks of a heap, and warps of threads that run at the same time.
// SPDX-License-Identifier: Apache-2.0
#include "emulated_warps.hpp"
#include "heap_model.hpp"

#include <gpumem/device_heap_core.hpp>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpumem_test::emulated_warps;
using gpumem_test::heap_memory;
namespace parts = gpumem::heap_detail;
constexpr std::size_t MiB = std::size_t{1} << 20, GiB = std::size_t{1} << 30;

// A lane of an emulated warp.
template <bool Checks = false> class lane {
public:
  explicit lane(gpumem::heap_view const& view) : view_{view} {}
  void* allocate(std::size_t bytes) {
    emulated_warps::current().enter(0);
    auto* const result = core{view_}.allocate(bytes);
    emulated_warps::current().leave();
    return result;
  }
  void deallocate(void* block) {
    emulated_warps::current().enter(1);
    core{view_}.deallocate(block);
    emulated_warps::current().leave();
  }

private:
  using core = parts::heap_core<gpumem_test::emulated_lanes<Checks>>;
  gpumem::heap_view const& view_;
};

// A thread that fills a slot may stop for long. The others must not count on: when the count overflows into the rest
// of the slot, they get blocks that others have.
TEST(heap_core, count_of_a_slot_does_not_overflow) {
  heap_memory heap{8 * MiB, 2 * MiB, 8 * MiB};
  emulated_warps warps{{.warps = 2, .lanes = 8, .processors = 1}, {}};
  std::set<void*> blocks;
  warps.run([&](unsigned number) {
    if (number == 0) blocks.insert(lane{heap.view()}.allocate(16));
  });
  auto const value = *heap.slot(0, 1);
  *heap.slot(0, 1) =
      parts::make_slot(parts::slab_of(value), parts::reserved_of(value), false, 3u << (parts::taken_bits - 2));
  warps.run([&](unsigned) {
    for (int i = 0; i != 8; ++i)
      EXPECT_TRUE(blocks.insert(lane{heap.view()}.allocate(16)).second) << "two threads have one block";
  });
  EXPECT_FALSE(blocks.contains(nullptr));
  EXPECT_EQ(*heap.slot(0, 1) >> parts::taken_bits, value >> parts::taken_bits);
  EXPECT_EQ(parts::taken_of(*heap.slot(0, 1)), 3u << (parts::taken_bits - 2));
}

TEST(heap_core, block_that_a_warp_frees_at_once_counts_once) {
  heap_memory heap{8 * MiB, 2 * MiB, 8 * MiB};
  for (std::size_t const bytes : {16, 2048, 65536}) {
    for (std::uint64_t seed = 1; seed != 20; ++seed) {
      emulated_warps warps{{.seed = seed, .warps = 1, .lanes = 8, .processors = 1, .diverging = 0}, {}};
      void* block = nullptr;
      warps.run([&](unsigned number) {
        if (number == 0) block = lane<true>{heap.view()}.allocate(bytes);
      });
      auto const before = heap.statistics().bad_frees;
      warps.run([&](unsigned) { lane<true>{heap.view()}.deallocate(block); });
      EXPECT_EQ(heap.statistics().bad_frees - before, 7u) << bytes << " bytes, seed " << seed;
      EXPECT_EQ(heap.statistics().live, 0u);
      EXPECT_EQ(heap.error_of({}), "");
    }
  }
}

// The slab is free at once, which it is not while a cache has a block of it.
TEST(heap_core, slab_that_a_warp_frees_leaves_the_cache_empty) {
  heap_memory heap{8 * MiB, 2 * MiB, 8 * MiB};
  constexpr unsigned kind = 9, count = 16; // blocks of 4 KiB, all those of a slab
  emulated_warps warps{{.warps = 1, .lanes = count, .processors = 1, .diverging = 0}, {}};
  std::vector<void*> blocks(count);
  warps.run([&](unsigned number) { blocks[number] = lane{heap.view()}.allocate(4096); });
  auto const used = heap.statistics().free;
  warps.run([&](unsigned number) { lane{heap.view()}.deallocate(blocks[number]); });
  EXPECT_EQ(heap.statistics().live, 0u);
  EXPECT_EQ(heap.statistics().free, used + parts::slab_bytes);
  EXPECT_EQ(*heap.at<int>(heap.layout().cache_sizes() + (kind - 1) * 4), 0);
  EXPECT_EQ(heap.error_of({}), "");
}

// Blocks that slots of one class have in advance serve the others, also those of an older view with fewer slots.
TEST(heap_core, slots_give_back_what_others_need) {
  heap_memory heap{32 * MiB, 2 * MiB, 32 * MiB};
  auto const old = heap.view_of(2 * MiB);
  emulated_warps warps{{.warps = 4, .lanes = 1, .processors = 4}, {}};
  for (std::size_t const bytes : {16, 4096, 65536}) {
    std::vector<void*> blocks;
    warps.run([&](unsigned) {
      for (int i = 0; i != 3; ++i) blocks.push_back(lane{heap.view()}.allocate(bytes));
    });
    warps.run([&](unsigned number) {
      if (number == 0)
        for (auto* const block : blocks) lane{heap.view()}.deallocate(block);
    });
    void* all = nullptr;
    warps.run([&](unsigned number) {
      if (number == 0) all = lane{old}.allocate(2 * MiB);
    });
    EXPECT_NE(all, nullptr) << "after blocks of " << bytes << " bytes";
    warps.run([&](unsigned number) {
      if (number == 0) lane{old}.deallocate(all);
    });
    EXPECT_EQ(heap.error_of({}), "");
  }
}

// A thread that finds no block in its place of a cache has counted it before another thread puts it there.
TEST(heap_core, block_above_the_size_of_a_cache_is_found) {
  heap_memory heap{8 * MiB, 2 * MiB, 8 * MiB};
  emulated_warps warps{{.warps = 1, .lanes = 1, .processors = 1}, {}};
  auto const& layout = heap.layout();
  constexpr unsigned kind = 11; // 16 KiB
  *heap.at<std::uint32_t>(layout.caches() + std::size_t{kind - 1} * parts::cache_entries * 4) = parts::cache_gap;
  void* all = nullptr;
  warps.run([&](unsigned) {
    lane self{heap.view()};
    self.deallocate(self.allocate(16384));
    *heap.at<int>(layout.cache_sizes() + (kind - 1) * 4) = 0;
    all = self.allocate(2 * MiB);
  });
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(heap.statistics().live, 1u);
}

// The numbers of such blocks do not fit into a cache.
TEST(heap_core, small_blocks_beyond_64_gib_are_freed) {
  heap_memory heap{65 * GiB, 0, 8 * MiB};
  constexpr std::size_t first = 64 * GiB / parts::slab_bytes;
  for (auto const& each : parts::fills_of_growth(heap.layout(), first, first + 32)) heap.apply(each);
  emulated_warps warps{{.warps = 1, .lanes = 4, .processors = 1, .quantum = 64}, {}};
  constexpr std::size_t count = 2 * MiB / 16 / 4;
  for (int round = 0; round != 2; ++round) {
    std::vector<void*> blocks;
    warps.run([&](unsigned) {
      for (std::size_t i = 0; i != count; ++i)
        if (auto* const block = lane{heap.view()}.allocate(16)) blocks.push_back(block);
    });
    EXPECT_EQ(blocks.size(), 4 * count);
    warps.run([&](unsigned) {
      while (!blocks.empty()) {
        auto* const block = blocks.back();
        blocks.pop_back();
        lane{heap.view()}.deallocate(block);
      }
    });
  }
}

// Each thread runs one warp. The lanes stamp their blocks, hand them to others, and free what they get.
TEST(heap_core, warps_of_threads_share_a_heap) {
  for (std::uint64_t seed = 1; seed != 5; ++seed) {
    heap_memory heap{16 * MiB, 4 * MiB, 16 * MiB};
    struct handed {
      unsigned char* block;
      std::size_t bytes;
      unsigned char stamp;
    };
    std::array<std::atomic<handed*>, 16> places{};
    std::atomic<unsigned> overwritten{0};
    auto const check = [&](lane<>& self, handed* got) {
      if (got == nullptr) return;
      for (std::size_t i = 0; i != got->bytes; ++i)
        if (got->block[i] != got->stamp) ++overwritten;
      self.deallocate(got->block);
      delete got;
    };
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread != 3; ++thread)
      threads.emplace_back([&, thread] {
        emulated_warps warps{{.seed = seed * 10 + thread,
                              .warps = 1,
                              .lanes = 4,
                              .processors = 2,
                              .quantum = 8,
                              .alone = false,
                              .first_warp = thread},
                             {}};
        warps.run([&](unsigned number) {
          lane self{heap.view()};
          std::mt19937_64 random{seed * 1000 + thread * 10 + number};
          for (int i = 0; i != 300; ++i) {
            auto const bytes = random() % 50 == 0 ? 100'000 : std::size_t{16} << random() % (seed % 2 != 0 ? 4 : 13);
            auto* const block = static_cast<unsigned char*>(self.allocate(bytes));
            if (block == nullptr) continue;
            auto const stamp = static_cast<unsigned char>(random());
            for (std::size_t n = 0; n != bytes; ++n) block[n] = stamp;
            check(self, places[random() % places.size()].exchange(new handed{block, bytes, stamp}));
          }
        });
      });
    for (auto& each : threads) each.join();
    emulated_warps warps{{.warps = 1, .lanes = 4, .processors = 1}, {}};
    warps.run([&](unsigned) {
      lane self{heap.view()};
      for (auto& place : places) check(self, place.exchange(nullptr));
    });
    EXPECT_EQ(overwritten.load(), 0u) << "seed " << seed;
    EXPECT_EQ(heap.statistics().live, 0u) << "seed " << seed;
    EXPECT_EQ(heap.statistics().bad_frees, 0u) << "seed " << seed;
    EXPECT_EQ(heap.error_of({}), "") << "seed " << seed;
  }
}

} // namespace
