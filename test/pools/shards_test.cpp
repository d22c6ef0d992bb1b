// Shards: who gets one, where blocks go back to, and what moves between them.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

import gpumem;

namespace {

using gpumem::pool_resource;
constexpr std::size_t MiB = std::size_t{1} << 20;

class shards : public gpumem_test::simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};

  template <class Pool> static auto& engine_of(Pool& pool) {
    return static_cast<gpumem::detail::pool_state*>(pool.services().state)->engine();
  }
  // Two threads at one lock until each has a shard of its own, or is as good as alone; then `work(thread)`.
  template <class Pool, class Work> void crowd(Pool& pool, Work const& work) {
    auto const given_up = std::chrono::steady_clock::now() + std::chrono::minutes{1};
    std::barrier together{2};
    auto const body = [&](int number) {
      auto const& on = number == 0 ? a : b;
      together.arrive_and_wait();
      // Larger than what is kept near a thread; what is consistent is looked at under the lock, so that two meet there
      // however the host schedules them.
      while (engine_of(pool).read_paths().shards < 2 && std::chrono::steady_clock::now() < given_up) {
        pool.deallocate(on, pool.allocate(on, 5 * MiB), 5 * MiB);
        EXPECT_TRUE(engine_of(pool).consistent());
      }
      together.arrive_and_wait();
      work(number);
    };
    std::thread other{body, 1};
    body(0);
    other.join();
  }
};

TEST_F(shards, one_is_all_that_a_single_thread_needs) {
  pool_resource r{gpumem::cuda_resource{device}};
  for (int i = 0; i < 1000; ++i) r.deallocate(a, r.allocate(a, MiB), MiB);
  auto const paths = engine_of(r).read_paths();
  EXPECT_EQ(paths.shards, 1u);
  EXPECT_EQ(paths.all_locked, 0u);
}

TEST_F(shards, a_thread_keeps_nothing_that_lies_in_anothers) {
  constexpr std::size_t bytes = 100'000;
  pool_resource r{gpumem::cuda_resource{device}};
  std::vector<void*> blocks(20);
  std::barrier together{2};
  crowd(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    for (int i = 0; i < 20; ++i) r.deallocate(on, r.allocate(on, 8 * MiB), 8 * MiB); // ends with memory of its own
    together.arrive_and_wait();
    if (number == 0) {
      for (auto& each : blocks) each = r.allocate(a, bytes);
    }
    together.arrive_and_wait();
    if (number == 1) {
      auto const cached = r.figures().cached;
      for (auto* const each : blocks) r.deallocate(b, each, bytes);
      EXPECT_EQ(r.figures().cached, cached);
      // But for frees that are to leave evidence.
      for (int i = 0; i < 10 && r.figures().cached <= cached; ++i) r.deallocate(b, r.allocate(b, bytes), bytes);
      EXPECT_GT(r.figures().cached, cached) << "of its own it does";
    }
    together.arrive_and_wait();
  });
}

TEST_F(shards, are_given_to_threads_that_meet_and_take_one_lock_from_then_on) {
  pool_resource r{gpumem::cuda_resource{device}};
  std::barrier together{2};
  crowd(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    auto const rounds = [&](int count) {
      for (int i = 0; i < count; ++i) r.deallocate(on, r.allocate(on, 8 * MiB), 8 * MiB);
    };
    rounds(10);
    together.arrive_and_wait();
    if (number == 0) {
      rounds(10); // it may have met the other in the last call, and ends with memory of its own
      auto const before = engine_of(r).read_paths();
      rounds(1000);
      auto const after = engine_of(r).read_paths();
      EXPECT_EQ(after.all_locked, before.all_locked);
      EXPECT_EQ(after.locked_calls, before.locked_calls + 2000);
    }
    together.arrive_and_wait();
  });
  EXPECT_GE(engine_of(r).read_paths().shards, 2u);
  EXPECT_TRUE(engine_of(r).consistent());
  EXPECT_EQ(r.figures().live, 0u);
}

TEST_F(shards, threads_that_have_them_have_sizes_up_to_a_mebibyte_rounded_up) {
  constexpr std::size_t KiB = 1024, bytes = 900 * KiB + 1;
  pool_resource r{gpumem::cuda_resource{device}};
  auto const granted = [&] {
    auto* const p = r.allocate(a, bytes);
    auto const got = r.find(p)->granted;
    r.deallocate(a, p, bytes);
    return got;
  };
  EXPECT_EQ(granted(), 900 * KiB + 256);
  crowd(r, [](int) {});
  EXPECT_EQ(granted(), 960 * KiB);
}

// Who notifies under one of the locks, as soon as that is given up, is heard.
TEST_F(shards, have_locks_of_which_none_is_given_up_before_the_wait_has_begun) {
  namespace detail = gpumem::detail;
  constexpr int threads = 40, rounds = 2'000;
  detail::shard_list list;
  std::barrier all{threads};
  std::vector<std::thread> owners;
  for (int i = 0; i < threads; ++i) {
    owners.emplace_back([&] {
      gpumem::sync::thread_number(); // each has one of its own
      all.arrive_and_wait();
      detail::shard_locks const held{list};
      list.spread();
    });
  }
  for (auto& each : owners) each.join();
  ASSERT_GT(list.all().size(), threads / 2u);
  gpumem::sync::quick_condition changed;
  auto& second = *list.all()[1];
  std::atomic<int> waiting{0}, heard{0};
  int told = 0;
  std::atomic<int> missed{0};
  std::thread teller{[&] {
    for (int round = 1; round <= rounds && missed == 0; ++round) {
      while (waiting.load() < round) std::this_thread::yield();
      {
        gpumem::sync::quick_lock const held{second.guard};
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
    detail::shard_locks held{list};
    waiting.store(round);
    while (told < round) held.wait(changed);
    heard.store(round);
  }
  teller.join();
  EXPECT_EQ(missed, 0);
}

TEST_F(shards, each_has_some_credit) {
  constexpr std::size_t bytes = 64 * 1024;
  pool_resource r{device, {.initial_size = 256 * MiB}};
  auto const keep = [&] {
    std::vector<void*> blocks(512);
    for (auto& each : blocks) each = r.allocate(a, bytes);
    for (auto* const each : blocks) r.deallocate(a, each, bytes);
    return r.figures().cached;
  };
  auto const alone = keep();
  EXPECT_LE(alone, 4 * MiB);
  crowd(r, [](int) {});
  auto together = alone;
  // The other thread has to give back what it has of the credit, and frees that are to leave evidence are not kept.
  for (int i = 0; i < 100 && together <= alone + MiB; ++i) {
    gpumem::simulator::run_until_idle();
    r.trim(SIZE_MAX); // of its own shard is what it keeps: that stays
    together = keep();
  }
  auto const count = engine_of(r).read_paths().shards;
  EXPECT_GE(count, 2u);
  EXPECT_GT(together, alone + MiB) << "a share: of two shards 8 MiB, of three 6";
  EXPECT_LE(together, count * 4 * MiB);
}

TEST_F(shards, a_block_goes_back_to_where_it_came_from) {
  pool_resource r{gpumem::cuda_resource{device}};
  std::vector<void*> blocks(2);
  std::barrier together{2};
  crowd(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    blocks[number] = r.allocate(on, 8 * MiB);
    on.key().wait_on_host();
    together.arrive_and_wait();
    r.deallocate(on, blocks[1 - number], 8 * MiB); // the other's
    EXPECT_TRUE(engine_of(r).consistent());
  });
  EXPECT_EQ(r.figures().live, 0u);
  a.synchronize();
  b.synchronize();
  EXPECT_EQ(r.trim(), r.figures().peak_reserved) << "chunks of every shard go back";
}

TEST_F(shards, of_pages_give_back_what_is_idle_in_each) {
  gpumem::pool_resource r{device};
  crowd(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    for (int i = 0; i < 10; ++i) r.deallocate(on, r.allocate(on, 16 * MiB), 16 * MiB); // ends with memory of its own
  });
  a.synchronize();
  b.synchronize();
  auto const reserved = r.figures().reserved;
  EXPECT_GE(reserved, 32 * MiB);
  auto const given = r.trim(20 * MiB);
  EXPECT_EQ(r.figures().reserved, reserved - given);
  EXPECT_TRUE(engine_of(r).consistent());
  EXPECT_EQ(given + r.trim(), reserved);
  EXPECT_EQ(device_bytes(), 0u);
}

// One thread has its shard's lock most of the time; the other frees what it allocates.
TEST_F(shards, a_free_that_finds_the_lock_taken_is_left_to_its_holder) {
  pool_resource r{gpumem::cuda_resource{device}, {.initial_size = 64 * MiB}};
  std::vector<std::atomic<void*>> handed(64);
  std::atomic<bool> ended{false};
  r.deallocate(b, r.allocate(b, MiB), MiB); // a second stream: evidence is of use
  std::thread other{[&] {
    while (!ended) {
      for (auto& each : handed) {
        if (auto* const p = each.exchange(nullptr)) r.deallocate(b, p, 8192);
      }
    }
  }};
  auto const given_up = std::chrono::steady_clock::now() + std::chrono::minutes{1}; // the other may begin late
  auto const lacks = [&] {
    return engine_of(r).read_paths().posted == 0 && std::chrono::steady_clock::now() < given_up;
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
  EXPECT_GT(engine_of(r).read_paths().posted, 0u);
  EXPECT_TRUE(engine_of(r).consistent());
  auto const f = r.figures();
  EXPECT_EQ(f.live, 0u);
  EXPECT_EQ(f.allocations, f.frees);
}

TEST_F(shards, what_one_has_free_the_others_use_before_they_grow) {
  pool_resource r{gpumem::cuda_resource{device}, {.initial_size = 64 * MiB}};
  std::barrier turn{2};
  crowd(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    on.key().wait_on_host(); // else what it has freed is its stream's
    turn.arrive_and_wait();
    for (int part = 0; part < 2; ++part) {
      if (part == number) {
        // What it has borrowed until it had memory of its own is long ago.
        for (int i = 0; i < 1000; ++i) r.deallocate(on, r.allocate(on, 4 * MiB), 4 * MiB);
        auto const reserved = r.figures().reserved;
        auto* const p = r.allocate(on, 32 * MiB);
        EXPECT_EQ(r.figures().reserved, reserved);
        r.deallocate(on, p, 32 * MiB);
        on.key().wait_on_host();
      }
      turn.arrive_and_wait();
    }
  });
  EXPECT_GT(engine_of(r).read_paths().borrowed, 0u);
}

// Three neighbours that wait for several streams, of which the one in the middle becomes like the others once one of
// its streams is done: it takes the upper one in, which the walk would have come to next.
TEST_F(shards, completion_walks_over_what_becomes_a_part_of_another) {
  using gpumem::detail::tag;
  constexpr std::size_t part = 4096;
  gpumem::stream c{device};
  auto const use = [](gpumem::stream const& on) { return tag{&on.key().order(), on.key().order().close_epoch()}; };
  gpumem::detail::pool_shard shard{1};
  gpumem::detail::chunk home{.base = 0x10000, .bytes = 3 * part, .shard = &shard};
  auto& whole = shard.ranges.add(home, {});
  auto* const low = &shard.ranges.take(whole, 0, part);
  auto* const middle = &shard.ranges.take(*low->upper, 0, part);
  auto* const high = &shard.ranges.take(*middle->upper, 0, part);
  auto const open = use(a), done = use(b), late = use(b), gone = use(c);
  for (auto const& each : {open, late}) low->tags.add(each);
  for (auto const& each : {open, late, gone}) middle->tags.add(each);
  for (auto const& each : {open, done}) high->tags.add(each);
  for (auto* const each : {low, middle, high}) shard.ranges.release(*each, gpumem::detail::range_map::joining::alike);
  b.key().order().publish_completed(done.newest);
  c.key().order().publish_completed(gone.newest);
  gpumem::detail::pool_shard* const all[] = {&shard};
  EXPECT_TRUE(gpumem::detail::pool_order(gpumem::reuse::wait, false).give_completed(all));
  std::size_t pieces = 0, bytes = 0;
  shard.ranges.by_order().visit([&](gpumem::detail::shelf& one) {
    for (auto const* each = one.oldest(); each; each = each->newer) {
      ++pieces;
      bytes += each->bytes;
    }
  });
  EXPECT_EQ(pieces, 1u);
  EXPECT_EQ(bytes, 3 * part);
  EXPECT_EQ(home.first->base, home.base);
  EXPECT_EQ(shard.ranges.free_bytes(), 3 * part);
}

} // namespace
