// Shards: which thread gets one, to which shard blocks return, and what moves between shards.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "shard_fixture.hpp"

namespace {

using gpumem::pool_resource;
constexpr std::size_t MiB = std::size_t{1} << 20;
using shard_list_test = gpumem_test::shard_fixture;

TEST_F(shard_list_test, single_thread_has_one_shard) {
  pool_resource r{gpumem::cuda_resource{device}};
  for (int i = 0; i < 1000; ++i) r.deallocate(a, r.allocate(a, MiB), MiB);
  auto const counters = engine_of(r).read_counters();
  EXPECT_EQ(r.statistics().shards, 1u);
  EXPECT_EQ(counters.all_locked_calls, 0u);
}

TEST_F(shard_list_test, thread_caches_no_block_of_another_shard) {
  constexpr std::size_t bytes = 100'000;
  pool_resource r{gpumem::cuda_resource{device}, {.shard_per_thread = true}};
  std::vector<void*> blocks(20);
  std::barrier together{2};
  make_shards(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    for (int i = 0; i < 20; ++i) r.deallocate(on, r.allocate(on, 8 * MiB), 8 * MiB); // it ends with its own memory
    together.arrive_and_wait();
    if (number == 0) {
      for (auto& each : blocks) each = r.allocate(a, bytes);
    }
    together.arrive_and_wait();
    if (number == 1) {
      auto const cached = r.statistics().cached;
      for (auto* const each : blocks) r.deallocate(b, each, bytes);
      EXPECT_EQ(r.statistics().cached, cached);
      // Except for frees that record an event.
      for (int i = 0; i < 10 && r.statistics().cached <= cached; ++i) r.deallocate(b, r.allocate(b, bytes), bytes);
      EXPECT_GT(r.statistics().cached, cached) << "its own blocks are cached";
    }
    together.arrive_and_wait();
  });
}

TEST_F(shard_list_test, threads_that_contend_get_shards_and_take_one_lock) {
  pool_resource r{gpumem::cuda_resource{device}, {.shard_per_thread = true}};
  std::barrier together{2};
  make_shards(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    auto const rounds = [&](int count) {
      for (int i = 0; i < count; ++i) r.deallocate(on, r.allocate(on, 8 * MiB), 8 * MiB);
    };
    rounds(10);
    together.arrive_and_wait();
    if (number == 0) {
      rounds(10); // the last call may have met the other thread; afterwards it has memory in its own shard
      auto const before = engine_of(r).read_counters();
      rounds(1000);
      auto const after = engine_of(r).read_counters();
      EXPECT_EQ(after.all_locked_calls, before.all_locked_calls);
      EXPECT_EQ(after.locked_calls, before.locked_calls + 2000);
    }
    together.arrive_and_wait();
  });
  EXPECT_GE(r.statistics().shards, 2u);
  EXPECT_TRUE(engine_of(r).is_consistent());
  EXPECT_EQ(r.statistics().live, 0u);
}

TEST_F(shard_list_test, threads_with_shards_round_sizes_up_to_a_mebibyte) {
  constexpr std::size_t KiB = 1024, bytes = 900 * KiB + 1;
  pool_resource r{gpumem::cuda_resource{device}, {.shard_per_thread = true}};
  auto const granted = [&] {
    auto* const p = r.allocate(a, bytes);
    auto const got = r.find(p)->allocated;
    r.deallocate(a, p, bytes);
    return got;
  };
  EXPECT_EQ(granted(), 900 * KiB + 256);
  make_shards(r, [](int) {});
  EXPECT_EQ(granted(), 960 * KiB);
  for (int i = 0; i < 3; ++i) r.trim(SIZE_MAX); // each one ends a round
  EXPECT_EQ(granted(), 900 * KiB + 256) << "the other thread has ended";
}

TEST_F(shard_list_test, memory_of_spare_shards_serves_the_thread_that_is_left) {
  pool_resource r{gpumem::cuda_resource{device}};
  make_shards(r, [&](int) {
    for (int i = 0; i < 20; ++i) r.deallocate_sync(r.allocate_sync(MiB), MiB); // it ends with its own memory
  });
  a.synchronize();
  b.synchronize();
  ASSERT_GE(r.statistics().shards, 2u);
  for (int i = 0; i < 3; ++i) r.trim(SIZE_MAX);
  EXPECT_EQ(r.statistics().shards, 1u);
  auto const reserved = r.statistics().reserved;
  std::vector<void*> blocks;
  while (r.statistics().largest_free >= MiB) blocks.push_back(r.allocate_sync(MiB));
  EXPECT_EQ(r.statistics().reserved, reserved);
  EXPECT_GE(blocks.size() * MiB, reserved * 3 / 4);
  EXPECT_TRUE(engine_of(r).is_consistent());
  for (auto* const each : blocks) r.deallocate_sync(each, MiB);
  EXPECT_TRUE(engine_of(r).is_consistent());
  a.synchronize();
  EXPECT_EQ(r.trim(), reserved);
  EXPECT_NEAR(r.statistics().peak_live, blocks.size() * MiB, reserved / 1000) << "one shard is active";
}

// A notification under one of the locks is received as soon as that lock is released.
TEST_F(shard_list_test, no_lock_is_released_before_a_wait_has_begun) {
  namespace detail = gpumem::detail;
  constexpr int threads = 40, rounds = 2'000;
  detail::shard_list list;
  std::barrier all{threads};
  std::vector<std::thread> owners;
  for (int i = 0; i < threads; ++i) {
    owners.emplace_back([&] {
      gpumem::detail::sync::thread_index(); // gives each thread its own index
      all.arrive_and_wait();
      detail::all_shards_lock const held{list};
      list.add_for_thread();
    });
  }
  for (auto& each : owners) each.join();
  ASSERT_GT(list.all().size(), threads / 2u);
  gpumem::detail::sync::spin_condition changed;
  auto& second = *list.all()[1];
  std::atomic<int> waiting{0}, heard{0};
  int told = 0;
  std::atomic<int> missed{0};
  std::thread teller{[&] {
    for (int round = 1; round <= rounds && missed == 0; ++round) {
      while (waiting.load() < round) std::this_thread::yield();
      {
        gpumem::detail::sync::spin_lock const held{second.mutex};
        told = round;
        changed.notify_all();
      }
      auto const given_up = std::chrono::steady_clock::now() + std::chrono::seconds{20};
      while (heard.load() < round && std::chrono::steady_clock::now() < given_up) std::this_thread::yield();
      missed += heard.load() < round ? 1 : 0;
      changed.notify_all();
    }
  }};
  for (int round = 1; round <= rounds && missed == 0; ++round) {
    detail::all_shards_lock const held{list};
    waiting.store(round);
    while (told < round) list.wait(changed);
    heard.store(round);
  }
  teller.join();
  EXPECT_EQ(missed, 0);
}

TEST_F(shard_list_test, each_shard_has_a_cache_budget) {
  constexpr std::size_t bytes = 64 * 1024;
  pool_resource r{device, {.initial_size = 256 * MiB}};
  auto const keep = [&] {
    std::vector<void*> blocks(512);
    for (auto& each : blocks) each = r.allocate(a, bytes);
    for (auto* const each : blocks) r.deallocate(a, each, bytes);
    return r.statistics().cached;
  };
  auto const alone = keep();
  EXPECT_LE(alone, 4 * MiB);
  auto together = alone;
  std::atomic<bool> ended{false};
  make_shards(r, [&](int number) {
    while (number == 1 && !ended) r.deallocate_sync(r.allocate_sync(MiB), MiB); // so its shard stays active
    // The other thread has to release its share of the budget, and frees that record an event are not cached.
    for (int i = 0; number == 0 && i < 100 && together <= alone + MiB; ++i) {
      gpumem::simulator::run_until_idle();
      r.trim(SIZE_MAX); // the blocks that it caches are from its own shard and stay
      together = keep();
    }
    ended = true;
  });
  EXPECT_GT(together, alone + MiB) << "the share of one shard: 8 MiB of two, 6 MiB of three";
  EXPECT_LE(together, 3 * 4 * MiB);
}

TEST_F(shard_list_test, freed_block_goes_back_to_its_shard) {
  pool_resource r{gpumem::cuda_resource{device}};
  std::vector<void*> blocks(2);
  std::barrier together{2};
  make_shards(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    blocks[number] = r.allocate(on, 8 * MiB);
    on.key().identity().wait_on_host();
    together.arrive_and_wait();
    r.deallocate(on, blocks[1 - number], 8 * MiB); // the other thread's block
    EXPECT_TRUE(engine_of(r).is_consistent());
  });
  EXPECT_EQ(r.statistics().live, 0u);
  a.synchronize();
  b.synchronize();
  EXPECT_EQ(r.trim(), r.statistics().peak_reserved) << "chunks of every shard are returned";
}

TEST_F(shard_list_test, each_shard_releases_its_idle_pages) {
  gpumem::pool_resource r{device, {.effort = 0}}; // without moves of pages each shard has its own
  make_shards(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    for (int i = 0; i < 10; ++i) r.deallocate(on, r.allocate(on, 16 * MiB), 16 * MiB); // it ends with its own memory
  });
  a.synchronize();
  b.synchronize();
  auto const reserved = r.statistics().reserved;
  EXPECT_GE(reserved, 32 * MiB);
  auto const given = r.trim(20 * MiB);
  EXPECT_EQ(r.statistics().reserved, reserved - given);
  EXPECT_TRUE(engine_of(r).is_consistent());
  EXPECT_EQ(given + r.trim(), reserved);
  EXPECT_TRUE(wait_for_device_bytes(0)) << "memory of earlier tests may be on its way";
}

// One thread holds its shard's lock most of the time; the other frees the blocks that it allocates.
TEST_F(shard_list_test, free_that_finds_the_lock_taken_becomes_a_remote_free) {
  pool_resource r{gpumem::cuda_resource{device}, {.initial_size = 64 * MiB}};
  std::vector<std::atomic<void*>> handed(64);
  std::atomic<bool> ended{false};
  r.deallocate(b, r.allocate(b, MiB), MiB); // with a second stream, events are useful
  std::thread other{[&] {
    while (!ended) {
      for (auto& each : handed) {
        if (auto* const p = each.exchange(nullptr)) r.deallocate(b, p, 8192);
      }
    }
  }};
  auto const given_up = std::chrono::steady_clock::now() + std::chrono::minutes{1}; // the other thread may start late
  auto const lacks = [&] {
    return engine_of(r).read_counters().remote_frees == 0 && std::chrono::steady_clock::now() < given_up;
  };
  for (int i = 0; i % 1000 > 0 || lacks(); ++i) {
    auto* const p = r.allocate(a, 8192);
    void* none = nullptr;
    if (!handed[i % handed.size()].compare_exchange_strong(none, p)) r.deallocate(a, p, 8192);
  }
  ended = true;
  other.join();
  for (auto& each : handed) {
    if (auto* const p = each.load()) r.deallocate(a, p, 8192);
  }
  EXPECT_GT(engine_of(r).read_counters().remote_frees, 0u);
  EXPECT_TRUE(engine_of(r).is_consistent());
  auto const f = r.statistics();
  EXPECT_EQ(f.live, 0u);
  EXPECT_EQ(f.allocations, f.frees);
}

TEST_F(shard_list_test, free_memory_of_other_shards_is_used_before_growth) {
  pool_resource r{gpumem::cuda_resource{device}, {.initial_size = 64 * MiB}};
  std::barrier turn{2};
  make_shards(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    on.key().identity().wait_on_host(); // otherwise the freed memory stays with its stream
    turn.arrive_and_wait();
    for (int part = 0; part < 2; ++part) {
      if (part == number) {
        // The steals from the time before it had its own shard are long past.
        for (int i = 0; i < 1000; ++i) r.deallocate_sync(r.allocate_sync(MiB), MiB);
        auto const reserved = r.statistics().reserved;
        std::array<void*, 8> blocks{};
        for (auto& each : blocks) each = r.allocate_sync(MiB);
        EXPECT_EQ(r.statistics().reserved, reserved);
        for (auto* const each : blocks) r.deallocate_sync(each, MiB);
        on.key().identity().wait_on_host();
      }
      turn.arrive_and_wait();
    }
  });
  EXPECT_GT(engine_of(r).read_counters().steals, 0u);
}

// Three neighbouring ranges wait for several streams. When one stream completes, the middle range has the same uses as
// its neighbours and merges with the upper one, which the walk would have visited next.
TEST_F(shard_list_test, promotion_continues_behind_a_range_that_was_merged) {
  using gpumem::detail::stream_use;
  constexpr std::size_t part = 4096;
  gpumem::stream c{device};
  auto const use = [](gpumem::stream const& on) {
    return stream_use{&on.key().identity().timeline(), on.key().identity().timeline().epochs().advance()};
  };
  gpumem::detail::pool_shard shard{1};
  gpumem::detail::chunk parent{.base = 0x10000, .bytes = 3 * part, .shard = &shard};
  auto& whole = shard.ranges.add(parent, {});
  auto* const low = &shard.ranges.split_off(whole, 0, part);
  auto* const middle = &shard.ranges.split_off(*low->upper, 0, part);
  auto* const high = &shard.ranges.split_off(*middle->upper, 0, part);
  auto const open = use(a), done = use(b), late = use(b), gone = use(c);
  for (auto const& each : {open, late}) low->uses.add(each);
  for (auto const& each : {open, late, gone}) middle->uses.add(each);
  for (auto const& each : {open, done}) high->uses.add(each);
  for (auto* const each : {low, middle, high})
    shard.ranges.free(*each, gpumem::detail::range_allocator::coalescing::same_streams);
  b.key().identity().timeline().epochs().publish_completed(done.newest);
  c.key().identity().timeline().epochs().publish_completed(gone.newest);
  gpumem::detail::pool_shard* const all[] = {&shard};
  EXPECT_TRUE(gpumem::detail::reuse_rules(gpumem::reuse_policy::wait, false).promote_completed(all));
  std::size_t pieces = 0, bytes = 0;
  shard.ranges.lists().visit([&](gpumem::detail::free_list& one) {
    for (auto const* each = one.oldest(); each; each = each->newer) {
      ++pieces;
      bytes += each->bytes;
    }
  });
  EXPECT_EQ(pieces, 1u);
  EXPECT_EQ(bytes, 3 * part);
  EXPECT_EQ(parent.first->base, parent.base);
  EXPECT_EQ(shard.ranges.free_bytes(), 3 * part);
}

} // namespace
