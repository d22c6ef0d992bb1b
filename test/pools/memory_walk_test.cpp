// The walk over a pool's memory: what it copies, in which pieces, and the labels of blocks.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

import gpumem;

namespace {

using gpumem::detail::copied_block;
using gpumem::detail::memory_copy;
using gpumem::detail::memory_state;
constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

class memory_walk : public gpumem_test::simulated_test {
protected:
  gpumem::device device{0};
  gpumem::stream stream{device};

  static auto& engine_of(pool& which) {
    return static_cast<gpumem::detail::pool_state*>(which.services().state)->engine();
  }
  static copied_block const* find(memory_copy const& copy, void const* base) {
    auto const found = std::ranges::find(copy.blocks, base, &copied_block::base);
    return found == copy.blocks.end() ? nullptr : &*found;
  }
  static std::string label_of(memory_copy const& copy, void const* base) {
    auto const* const found = find(copy, base);
    return found ? gpumem::detail::label_text(found->label) : "no block";
  }
  static void expect_ordered(memory_copy const& copy) {
    std::uintptr_t end = 0;
    for (auto const& each : copy.blocks) {
      auto const base = reinterpret_cast<std::uintptr_t>(each.base);
      EXPECT_GE(base, end);
      if (!each.begins_region) EXPECT_EQ(base, end);
      EXPECT_GT(each.bytes, 0u);
      end = base + each.bytes;
    }
  }
};

TEST_F(memory_walk, copies_each_state_of_a_block) {
  pool from{device};
  auto* const live = from.allocate(stream, 3 * MiB);
  auto* const cached = from.allocate(stream, 4 * KiB);
  auto* const freed = from.allocate(stream, 2 * MiB);
  auto* const kept = from.allocate(stream, 100);
  from.deallocate(stream, cached, 4 * KiB);
  from.deallocate(stream, freed, 2 * MiB);
  auto const copy = from.copy_memory();
  expect_ordered(copy);
  EXPECT_EQ(copy.calls_meanwhile, 0u);
  EXPECT_EQ(copy.pieces, 1u);
  ASSERT_TRUE(find(copy, live) && find(copy, cached) && find(copy, kept));
  EXPECT_EQ(find(copy, live)->state, memory_state::live);
  EXPECT_EQ(find(copy, live)->requested, 3 * MiB);
  EXPECT_EQ(find(copy, live)->stream, gpumem::extend::identify(stream, device).identity().id());
  EXPECT_EQ(find(copy, cached)->state, memory_state::cached);
  EXPECT_EQ(find(copy, cached)->requested, 0u);
  EXPECT_EQ(find(copy, kept)->requested, 100u);
  std::size_t requested = 0, reserved = 0, pages = 0, in_use = 0, in_caches = 0;
  for (auto const& each : copy.blocks) {
    requested += each.requested;
    reserved += each.bytes;
    in_use += each.in_use ? each.bytes : 0;
  }
  for (auto const& each : copy.pages) pages += each.bytes;
  for (auto const& each : copy.caches) in_caches += each.small + each.medium + each.large;
  EXPECT_EQ(requested, copy.statistics.live);
  EXPECT_EQ(reserved, copy.statistics.reserved);
  EXPECT_EQ(in_use, copy.statistics.free_in_use);
  EXPECT_EQ(pages, copy.statistics.reserved);
  EXPECT_EQ(in_caches, copy.statistics.cached);
  EXPECT_GE(in_caches, 4 * KiB);
  from.deallocate(stream, live, 3 * MiB);
  from.deallocate(stream, kept, 100);
}

TEST_F(memory_walk, pieces_of_any_size_give_the_same_blocks) {
  pool from{device};
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 60; ++i) blocks.push_back(from.allocate(stream, (i % 7 + 1) * 300 * KiB));
  for (std::size_t i = 0; i < 60; i += 3) from.deallocate(stream, blocks[i], (i % 7 + 1) * 300 * KiB);
  stream.synchronize();
  auto const whole = engine_of(from).copy_memory();
  EXPECT_EQ(whole.pieces, 1u);
  for (std::size_t piece : {1u, 2u, 7u, 30u}) {
    auto const copy = engine_of(from).copy_memory(piece);
    expect_ordered(copy);
    ASSERT_EQ(copy.blocks.size(), whole.blocks.size()) << piece;
    EXPECT_EQ(copy.pieces, (whole.blocks.size() + piece - 1) / piece);
    for (std::size_t i = 0; i < copy.blocks.size(); ++i) {
      EXPECT_EQ(copy.blocks[i].base, whole.blocks[i].base) << piece;
      EXPECT_EQ(copy.blocks[i].bytes, whole.blocks[i].bytes) << piece;
      EXPECT_EQ(copy.blocks[i].begins_region, whole.blocks[i].begins_region) << piece;
    }
  }
  for (std::size_t i = 0; i < 60; ++i) {
    if (i % 3) from.deallocate(stream, blocks[i], (i % 7 + 1) * 300 * KiB);
  }
}

TEST_F(memory_walk, chunks_are_regions_of_their_own) {
  pool from{device, {.chunk_size = 4 * MiB}};
  auto* const first = from.allocate(stream, 3 * MiB);
  auto* const second = from.allocate(stream, 3 * MiB);
  auto const copy = engine_of(from).copy_memory(1);
  expect_ordered(copy);
  EXPECT_EQ(std::ranges::count(copy.blocks, true, &copied_block::begins_region), 2);
  EXPECT_TRUE(copy.pages.empty());
  EXPECT_TRUE(find(copy, first) && find(copy, second));
  from.deallocate(stream, first, 3 * MiB);
  from.deallocate(stream, second, 3 * MiB);
}

// The age grows with calls that take the lock of the shard; a block from a thread cache keeps the age of the last one.
TEST_F(memory_walk, age_counts_locked_calls) {
  pool from{device};
  auto* const old = from.allocate(stream, 2 * MiB);
  std::vector<void*> more;
  for (int i = 0; i < 10; ++i) more.push_back(from.allocate(stream, 5 * MiB));
  auto const copy = from.copy_memory();
  EXPECT_GT(find(copy, old)->age, find(copy, more[4])->age);
  EXPECT_GT(find(copy, more[4])->age, find(copy, more[9])->age);
  EXPECT_LE(find(copy, old)->age, 11u);
  for (auto* const each : more) from.deallocate(stream, each, 5 * MiB);
  from.deallocate(stream, old, 2 * MiB);
}

TEST_F(memory_walk, requests_that_wait_are_copied) {
  pool from{device, {.limit = 8 * MiB}};
  auto* const all = from.allocate(stream, 8 * MiB);
  gpumem::scope work{from, "work", {.priority = 3}};
  std::thread other{[&] {
    gpumem::device_guard const here{device};
    auto const block = work.acquire(stream, 2 * MiB).wait();
  }};
  while (from.statistics().waiting == 0) std::this_thread::yield();
  auto const copy = from.copy_memory();
  ASSERT_EQ(copy.waiting.size(), 1u);
  EXPECT_EQ(copy.waiting[0].bytes, 2 * MiB);
  EXPECT_EQ(copy.waiting[0].priority, 3);
  EXPECT_EQ(copy.waiting[0].holder, "work");
  EXPECT_EQ(copy.waiting[0].stream, gpumem::extend::identify(stream, device).identity().id());
  from.deallocate(stream, all, 8 * MiB);
  gpumem::simulator::run_until_idle();
  other.join();
}

TEST_F(memory_walk, label_lasts_until_the_free) {
  pool from{device};
  auto* const block = from.allocate(stream, 4 * KiB);
  EXPECT_EQ(label_of(from.copy_memory(), block), "");
  EXPECT_TRUE(from.set_label(block, "weights"));
  EXPECT_EQ(label_of(from.copy_memory(), block), "weights");
  EXPECT_TRUE(from.set_label(block, "gradients"));
  EXPECT_EQ(label_of(from.copy_memory(), block), "gradients");
  EXPECT_EQ(from.find(block)->bytes, 4 * KiB); // the block is as live as before
  from.deallocate(stream, block, 4 * KiB);
  EXPECT_EQ(from.statistics().cached, 4 * KiB); // in the thread cache, as without a label
  EXPECT_EQ(label_of(from.copy_memory(), block), "");
  ASSERT_EQ(from.allocate(stream, 4 * KiB), block);
  EXPECT_EQ(label_of(from.copy_memory(), block), "");
  EXPECT_TRUE(from.set_label(block, "weights"));
  EXPECT_TRUE(from.set_label(block, ""));
  EXPECT_EQ(label_of(from.copy_memory(), block), "");
  from.deallocate(stream, block, 4 * KiB);
  EXPECT_FALSE(from.set_label(block, "freed"));
  EXPECT_FALSE(from.set_label(&from, "foreign"));
  EXPECT_FALSE(from.set_label(nullptr, "null"));
}

TEST_F(memory_walk, labelled_block_is_freed_under_locks_too) {
  pool from{device};
  auto* const block = from.allocate(stream, 40 * MiB);
  auto* const beside = from.allocate(stream, 2 * MiB);
  from.set_label(block, "weights");
  gpumem::stream const second{device};
  from.record_use(block, second);
  from.deallocate(stream, block, 40 * MiB);
  EXPECT_EQ(from.statistics().live, 2 * MiB);
  EXPECT_TRUE(engine_of(from).is_consistent());
  from.deallocate(stream, beside, 2 * MiB);
  EXPECT_TRUE(engine_of(from).is_consistent());
}

TEST_F(memory_walk, scopes_and_requests_name_their_blocks) {
  pool from{device};
  gpumem::scope outer{from, "query"};
  gpumem::scope inner{outer, "join"};
  auto const a = outer.acquire(stream, 1000).wait();
  auto const b = inner.acquire(stream, 1000).wait();
  auto const c = inner.acquire(stream, 1000, {.label = "hash table"}).wait();
  auto const d = from.acquire(stream, 1000, {.label = "weights"}).try_now();
  auto* const plain = inner.allocate(stream, 1000);
  auto const copy = from.copy_memory();
  EXPECT_EQ(label_of(copy, a.data()), "query");
  EXPECT_EQ(label_of(copy, b.data()), "join");
  EXPECT_EQ(label_of(copy, c.data()), "hash table");
  EXPECT_EQ(label_of(copy, d->data()), "weights");
  EXPECT_EQ(label_of(copy, plain), "join");
  inner.deallocate(stream, plain, 1000);
}

TEST_F(memory_walk, hardened_pool_names_the_blocks_of_its_engine) {
  pool from{device, {.hardened = {.enabled = true}}};
  auto* const block = from.allocate(stream, 1000);
  EXPECT_TRUE(from.set_label(block, "weights"));
  auto const copy = from.copy_memory();
  EXPECT_EQ(std::ranges::count_if(copy.blocks, [](auto const& one) { return one.label != 0; }), 1);
  EXPECT_EQ(copy.statistics.live, 1000u);
  from.deallocate(stream, block, 1000);
  stream.synchronize();
}

TEST(labels, have_one_number_a_text) {
  using gpumem::detail::label_number, gpumem::detail::label_text;
  EXPECT_EQ(label_number(""), 0u);
  EXPECT_EQ(label_text(0), "");
  auto const number = label_number("one text");
  EXPECT_EQ(label_number(std::string{"one text"}), number);
  EXPECT_NE(label_number("another text"), number);
  EXPECT_EQ(label_text(number), "one text");
}

TEST(labels, text_ends_with_its_last_owner) {
  using gpumem::detail::label_number, gpumem::detail::label_text, gpumem::detail::label_use;
  std::uint32_t last = 0;
  for (int i = 0; i < 100'000; ++i) {
    label_use const used{"request " + std::to_string(i)}, same{"request " + std::to_string(i)};
    ASSERT_EQ(used.number(), same.number());
    ASSERT_EQ(label_text(used.number()), "request " + std::to_string(i));
    ASSERT_NE(used.number(), last) << "a block may still have the number";
    ASSERT_EQ(label_text(last), "");
    last = used.number();
  }
  std::uint32_t kept = 0;
  {
    label_use const used{"kept"};
    kept = label_number("kept");
    EXPECT_EQ(used.number(), kept);
  }
  EXPECT_NE(label_use{"other"}.number(), kept);
  EXPECT_EQ(label_text(kept), "kept");
  EXPECT_EQ(label_use{""}.number(), 0u);
}

TEST(labels, beyond_the_bound_have_one_text) {
  using gpumem::detail::label_number, gpumem::detail::label_text, gpumem::detail::label_use;
  auto const kept = label_number("label 0");
  std::deque<label_use> used;
  for (int i = 0; i < 70'000; ++i) used.emplace_back("label " + std::to_string(i));
  EXPECT_EQ(used.front().number(), kept);
  EXPECT_EQ(used.back().number(), UINT32_MAX);
  EXPECT_EQ(label_text(used.back().number()), "(other labels)");
  used.clear();
  EXPECT_EQ(label_text(kept), "label 0");
  EXPECT_EQ(label_text(label_use{"one more"}.number()), "one more");
}

} // namespace
