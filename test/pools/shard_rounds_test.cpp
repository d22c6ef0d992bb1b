// Which thread has a shard of its own, when the collisions of threads are forgotten, and which shards become spare.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include <gpumem/lock_attributes.hpp>
#include "../support/failing_new.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <thread>

import gpumem;

namespace {

using gpumem::detail::all_shards_lock;
using gpumem::detail::pool_shard;
namespace sync = gpumem::detail::sync;
namespace tuning = gpumem::detail::tuning;

class shard_rounds : public testing::Test {
protected:
  void SetUp() override { sync::thread_index(); } // so that no other thread gets the index of this one

  // The calling thread finds the first shard's lock taken, as often as a thread that gets a shard of its own.
  void collide(unsigned times = sync::contention_threshold) GPUMEM_NO_LOCK_ANALYSIS {
    for (unsigned i = 0; i < times; ++i) {
      list.lock_contended(first);
      first.mutex.unlock();
    }
  }
  void count_calls(pool_shard& of, std::uint64_t calls) {
    all_shards_lock const held{list};
    of.counters.locked_calls += calls;
  }
  void set_live(pool_shard& in, std::int64_t blocks) {
    all_shards_lock const held{list};
    in.live_blocks = blocks;
  }
  // Prepares an allocation of the calling thread, and returns its shard.
  pool_shard& begin_allocation() {
    all_shards_lock const held{list};
    list.begin_allocation(1 << 20, true);
    return list.shard_of_thread();
  }
  // Returns the shard that a new thread uses after it has met others.
  pool_shard& shard_of_new_thread() {
    pool_shard* its = nullptr;
    std::thread{[&] {
      collide();
      its = &begin_allocation();
    }}.join();
    return *its;
  }
  void end_rounds(int count) {
    for (int i = 0; i < count; ++i) {
      begin_allocation();
      all_shards_lock const held{list};
      list.end_round();
    }
  }

  gpumem::detail::shard_list list;
  pool_shard& first = *list.all().front();
};

TEST_F(shard_rounds, collisions_are_forgotten_after_two_windows) {
  collide(sync::contention_threshold - 1);
  count_calls(first, 2 * tuning::collision_window);
  collide(sync::contention_threshold - 1);
  EXPECT_NE(list.uncontended_shard(sync::thread_index(), 1 << 20), nullptr);
  EXPECT_EQ(&begin_allocation(), &first);
  collide(1);
  EXPECT_EQ(list.uncontended_shard(sync::thread_index(), 1 << 20), nullptr);
  EXPECT_NE(&begin_allocation(), &first) << "as many collisions in one window give the thread a shard";
}

TEST_F(shard_rounds, collisions_add_up_over_the_end_of_a_window) {
  collide(1);
  count_calls(first, tuning::collision_window - 1);
  collide(sync::contention_threshold / 2);
  count_calls(first, 2);
  collide(sync::contention_threshold / 2);
  EXPECT_NE(&begin_allocation(), &first);
}

TEST_F(shard_rounds, collision_at_the_shard_of_another_thread_does_not_count) {
  auto& other = shard_of_new_thread();
  [&]() GPUMEM_NO_LOCK_ANALYSIS {
    for (unsigned i = 0; i < 2 * sync::contention_threshold; ++i) {
      list.lock_contended(other);
      other.mutex.unlock();
    }
  }();
  EXPECT_EQ(&begin_allocation(), &first);
}

TEST_F(shard_rounds, shard_without_a_live_block_becomes_spare_and_serves_the_next_thread) {
  auto& other = shard_of_new_thread();
  set_live(other, 1);
  end_rounds(3);
  EXPECT_FALSE(other.spare) << "its block is live";
  EXPECT_EQ(list.active(), 1u) << "but its threads do not allocate";
  set_live(other, 0);
  end_rounds(1);
  EXPECT_TRUE(other.spare);
  EXPECT_EQ(&shard_of_new_thread(), &other);
  EXPECT_EQ(list.all().size(), 2u);
  EXPECT_FALSE(other.spare);
  EXPECT_EQ(list.active(), 2u);
}

TEST_F(shard_rounds, shard_that_was_used_in_this_round_stays) {
  begin_allocation();
  auto& other = shard_of_new_thread();
  end_rounds(1);
  EXPECT_FALSE(other.spare);
  EXPECT_EQ(list.active(), 2u);
  count_calls(first, gpumem::detail::shard_list::calls_per_round - 1);
  begin_allocation();
  EXPECT_FALSE(other.spare);
  count_calls(first, 1);
  begin_allocation();
  EXPECT_TRUE(other.spare) << "no thread has used it in a whole round";
  EXPECT_TRUE(list.single());
}

TEST_F(shard_rounds, only_active_thread_returns_to_the_first_shard) {
  collide();
  auto& mine = begin_allocation();
  ASSERT_NE(&mine, &first);
  set_live(mine, 1);
  end_rounds(3);
  EXPECT_EQ(&list.shard_of_thread(), &mine) << "it has a live block there";
  set_live(mine, 0);
  end_rounds(1);
  EXPECT_EQ(&list.shard_of_thread(), &first);
  EXPECT_EQ(list.active(), 1u);
}

TEST_F(shard_rounds, option_counts_one_thread_as_one_active_shard) {
  gpumem::detail::shard_list own{1, true};
  all_shards_lock const held{own};
  own.begin_allocation(1 << 20, false); // at the first shard: while requests wait, no thread gets one
  EXPECT_EQ(own.active(), 1u);
  for (int i = 0; i < 3; ++i) {
    own.begin_allocation(1 << 20, true);
    EXPECT_NE(&own.shard_of_thread(), own.all().front().get());
    EXPECT_EQ(own.active(), 1u);
    own.end_round();
    EXPECT_EQ(own.active(), 1u);
  }
}

TEST_F(shard_rounds, option_gives_a_thread_a_shard_once_the_host_has_memory) {
  if (!test::new_can_fail) GTEST_SKIP() << "the sanitizer has operators of its own";
  gpumem::detail::shard_list own{1, true};
  all_shards_lock const held{own};
  {
    test::failing_new const no_memory;
    own.begin_allocation(1 << 20, true);
  }
  EXPECT_EQ(own.all().size(), 1u);
  EXPECT_EQ(own.uncontended_shard(sync::thread_index(), 1 << 20), nullptr) << "its next request tries again";
  own.begin_allocation(1 << 20, true);
  EXPECT_EQ(own.all().size(), 2u);
  EXPECT_EQ(own.active(), 1u);
}

TEST_F(shard_rounds, option_gives_a_returning_thread_a_shard_again) {
  gpumem::detail::shard_list own{1, true};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(own.uncontended_shard(sync::thread_index(), 1 << 20), nullptr);
    all_shards_lock const held{own};
    own.begin_allocation(1 << 20, true);
    EXPECT_NE(&own.shard_of_thread(), own.all().front().get());
    own.end_round();
    EXPECT_EQ(&own.shard_of_thread(), own.all().front().get());
  }
  EXPECT_EQ(own.all().size(), 2u);
}

} // namespace
