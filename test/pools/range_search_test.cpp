// Which free range a request gets: the cheapest tier that the policy allows, in it the smallest fit, and at which
// price.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <utility>

import gpumem;

using gpumem::reuse_policy;
using gpumem::detail::block;
using gpumem::detail::chunk;
using gpumem::detail::granule;
using gpumem::detail::placement;
using gpumem::detail::pool_shard;
using gpumem::detail::reuse_tier;
using gpumem::detail::size_class;
using gpumem::detail::stream_use;
using gpumem::detail::stream_uses;
using gpumem::extend::stream_key;

namespace {

namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr auto same_streams = gpumem::detail::range_allocator::coalescing::same_streams;
using found = std::pair<block const*, reuse_tier>;
constexpr found nothing{nullptr, reuse_tier::none};

// Free ranges in two shards: each in a chunk of its own, so that they do not coalesce.
class range_search_test : public gpumem_test::simulated_test {
protected:
  // The streams are those of tests before, which may have left events open.
  range_search_test() {
    for (auto* const each : {&a, &b, &c}) {
      each->synchronize();
      each->key().identity().timeline().poll();
    }
  }

  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  static std::uint64_t polls() { return gpumem::driver_api::driver_calls("cuEventQuery"); }

  // A use in an epoch that ends with it. No event covers it yet.
  static stream_use open_use(gpumem::stream const& on) { return {&of(on), of(on).epochs().advance()}; }
  static stream_use completed_use(gpumem::stream const& on) {
    auto const use = open_use(on);
    of(on).epochs().publish_completed(use.newest);
    return use;
  }
  // A use that the stream is ordered after.
  static stream_use ordered_use(gpumem::stream const& on, gpumem::stream const& after) {
    auto const use = open_use(on);
    of(after).order().add(of(on).index(), use.newest, {});
    return use;
  }
  // A use for whose end other streams can wait; the device completes it when it runs.
  static stream_use waitable_use(gpumem::stream const& on) {
    of(on).prepare();
    simulator::work(on, std::initializer_list<simulator::touch>{});
    auto const covered = of(on).record_at_free(on.get());
    EXPECT_GT(covered, 0u);
    return {&of(on), covered};
  }

  block& add(std::size_t bytes, stream_uses const& uses, std::size_t shard = 0) {
    next += std::uintptr_t{1} << 30;
    parents.push_back({.base = next, .bytes = bytes, .shard = all[shard]});
    return all[shard]->ranges.add(parents.back(), uses);
  }
  block& add(std::size_t bytes, stream_use const& use, std::size_t shard = 0) {
    return add(bytes, stream_uses{use}, shard);
  }
  // Adds two neighbouring ranges of the same size, which have different uses.
  void add_pair(std::size_t bytes, stream_use const& below, stream_use const& above) {
    auto& low = all[0]->ranges.split_off(add(2 * bytes, stream_uses{}), 0, bytes);
    auto& high = all[0]->ranges.split_off(*low.upper, 0, bytes);
    low.uses.assign(below);
    high.uses.assign(above);
    for (auto* const each : {&low, &high}) all[0]->ranges.free(*each, same_streams);
  }

  gpumem::detail::allocation_request request(stream_key const& key, std::size_t bytes) {
    auto const size = size_class::of(bytes);
    return {.key = key,
            .requested = bytes,
            .bytes = bytes,
            .class_number = size.number,
            .alignment = granule,
            .thread = 0,
            .shard = all[0]};
  }
  static found in(placement const& place) { return place ? found{place.range, place.how} : nothing; }
  found find(stream_key const& key, std::size_t bytes) { return in(search.find(request(key, bytes), all)); }
  found find_without_poll(stream_key const& key, std::size_t bytes) {
    return in(search.find_without_poll(request(key, bytes), all));
  }
  found find_with_wait(stream_key const& key, std::size_t bytes) {
    return in(search.find_with_wait(request(key, bytes), all));
  }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device}, c{device};
  stream_key const key_a = a.key(), host = stream_key::host();
  std::uintptr_t next = 0;
  std::deque<chunk> parents;
  pool_shard first{1}, second{1};
  std::array<pool_shard*, 2> all{&first, &second};
  gpumem::detail::reuse_rules rules{reuse_policy::wait, false};
  gpumem::detail::range_search search{reuse_policy::wait, rules};
};

TEST_F(range_search_test, better_fit_of_own_and_ready_ranges_is_found) {
  auto const& own = add(4 * MiB, open_use(a));
  auto const& ready = add(3 * MiB, stream_uses{});
  EXPECT_EQ(find_without_poll(key_a, 2 * MiB), (found{&ready, reuse_tier::completed}));
  EXPECT_EQ(find_without_poll(key_a, 4 * MiB), (found{&own, reuse_tier::same_stream}));
  auto const& exact = add(2 * MiB, open_use(a));
  EXPECT_EQ(find_without_poll(key_a, 2 * MiB), (found{&exact, reuse_tier::same_stream}));
  EXPECT_EQ(find_without_poll(key_a, 5 * MiB), nothing);
}

TEST_F(range_search_test, small_block_of_a_quick_list_is_taken_before_a_range_is_split) {
  auto const quick = [&](stream_uses const& uses) -> block& {
    auto& one = all[0]->ranges.split_off(add(8192, stream_uses{}), 0, 4096);
    all[0]->ranges.split_off(*one.upper, 0, 4096);
    one.class_number = size_class::of(4096).number;
    one.uses = uses;
    EXPECT_TRUE(all[0]->ranges.push_quick(one));
    return one;
  };
  add(4096, stream_uses{});
  auto const& ready = quick({});
  EXPECT_EQ(find_without_poll(key_a, 4096), (found{&ready, reuse_tier::completed}));
  auto const& own = quick(stream_uses{open_use(a)});
  EXPECT_EQ(find_without_poll(key_a, 4096), (found{&own, reuse_tier::same_stream}));
}

TEST_F(range_search_test, fit_in_an_earlier_shard_ends_the_search_of_own_and_ready_ranges) {
  auto const& near = add(4 * MiB, stream_uses{}, 0);
  auto const& far = add(3 * MiB, stream_uses{}, 1);
  EXPECT_EQ(find_without_poll(key_a, 3 * MiB), (found{&near, reuse_tier::completed}));
  std::swap(all[0], all[1]);
  EXPECT_EQ(find_without_poll(key_a, 3 * MiB), (found{&far, reuse_tier::completed}));
}

TEST_F(range_search_test, range_that_the_stream_is_ordered_after_is_found_without_a_poll) {
  auto const before = polls();
  auto const& ordered = add(4 * MiB, ordered_use(b, a));
  add(2 * MiB, completed_use(c));
  EXPECT_EQ(find(key_a, 2 * MiB), (found{&ordered, reuse_tier::ordered})) << "before completed ones, even if larger";
  EXPECT_EQ(polls(), before);
}

TEST_F(range_search_test, smallest_ordered_range_of_all_streams_and_shards_is_found) {
  add(6 * MiB, ordered_use(b, a), 0);
  add(2 * MiB, ordered_use(b, a), 0);
  auto const& best = add(4 * MiB, ordered_use(c, a), 1);
  add(5 * MiB, ordered_use(c, a), 0);
  EXPECT_EQ(find_without_poll(key_a, 3 * MiB), (found{&best, reuse_tier::ordered}));
  stream_uses both{open_use(a)};
  both.add(ordered_use(b, a));
  auto const& shared = add(3 * MiB, both);
  EXPECT_EQ(find_without_poll(key_a, 3 * MiB), (found{&shared, reuse_tier::ordered})) << "of several streams";
}

TEST_F(range_search_test, range_that_is_known_to_be_complete_becomes_ready_without_a_poll) {
  auto const before = polls();
  auto const& completed = add(4 * MiB, completed_use(b));
  add(4 * MiB, open_use(c));
  EXPECT_EQ(find_without_poll(key_a, 4 * MiB), (found{&completed, reuse_tier::completed}));
  EXPECT_TRUE(completed.uses.empty());
  EXPECT_EQ(first.counters.promoted, 1u);
  EXPECT_EQ(polls(), before);
}

TEST_F(range_search_test, completed_range_is_found_after_a_poll) {
  auto const& completed = add(4 * MiB, waitable_use(b));
  EXPECT_EQ(find(key_a, 4 * MiB), nothing) << "its work has not run";
  simulator::run_until_idle();
  EXPECT_EQ(find_without_poll(key_a, 4 * MiB), nothing) << "the host has not seen it";
  EXPECT_EQ(find(key_a, 4 * MiB), (found{&completed, reuse_tier::completed}));
}

TEST_F(range_search_test, use_without_an_event_gets_one_from_the_poll) {
  auto const& completed = add(4 * MiB, open_use(b));
  EXPECT_EQ(find(key_a, 4 * MiB), nothing);
  simulator::run_until_idle();
  EXPECT_EQ(find(key_a, 4 * MiB), (found{&completed, reuse_tier::completed}));
}

TEST_F(range_search_test, completed_neighbours_are_joined_for_a_request_after_the_poll) {
  add_pair(2 * MiB, waitable_use(b), waitable_use(c));
  EXPECT_EQ(find(key_a, 4 * MiB), nothing);
  simulator::run_until_idle();
  auto const joined = find(key_a, 4 * MiB);
  ASSERT_TRUE(joined.first);
  EXPECT_EQ(joined.first->bytes, 4 * MiB);
  EXPECT_EQ(joined.second, reuse_tier::completed);
}

TEST_F(range_search_test, usable_neighbours_with_different_uses_are_joined_for_a_request_after_the_poll) {
  add_pair(2 * MiB, open_use(a), ordered_use(b, a));
  EXPECT_EQ(find_without_poll(key_a, 4 * MiB), nothing);
  auto const joined = find(key_a, 4 * MiB);
  ASSERT_TRUE(joined.first);
  EXPECT_EQ(joined.first->bytes, 4 * MiB);
  EXPECT_EQ(joined.second, reuse_tier::ordered);
}

TEST_F(range_search_test, stream_waits_for_a_range_only_in_the_search_with_wait) {
  auto const use = waitable_use(b);
  auto const& open = add(4 * MiB, use);
  EXPECT_EQ(find(key_a, 4 * MiB), nothing);
  EXPECT_FALSE(of(a).ordered_after(of(b), use.newest));
  EXPECT_EQ(find_with_wait(key_a, 4 * MiB), (found{&open, reuse_tier::wait}));
  EXPECT_TRUE(of(a).ordered_after(of(b), use.newest));
}

TEST_F(range_search_test, search_with_wait_prefers_cheaper_tiers_and_then_the_smallest_range) {
  add(6 * MiB, waitable_use(b));
  auto const& smaller = add(4 * MiB, waitable_use(b));
  add(4 * MiB, open_use(c)); // no event for which a stream could wait
  EXPECT_EQ(find_with_wait(key_a, 3 * MiB), (found{&smaller, reuse_tier::wait}));
  add(3 * MiB, waitable_use(c));
  EXPECT_EQ(find_with_wait(key_a, 3 * MiB), (found{&smaller, reuse_tier::ordered})) << "after the first wait";
  auto const& own = add(9 * MiB, open_use(a));
  EXPECT_EQ(find_with_wait(key_a, 3 * MiB), (found{&own, reuse_tier::same_stream}));
}

TEST_F(range_search_test, policy_ordered_leaves_memory_to_the_streams_that_freed_it) {
  gpumem::detail::reuse_rules strict{reuse_policy::ordered, false};
  gpumem::detail::range_search ordered_only{reuse_policy::ordered, strict};
  auto const before = polls();
  auto& completed = add(4 * MiB, completed_use(b));
  add(4 * MiB, waitable_use(b));
  simulator::run_until_idle();
  auto const wanted = request(key_a, 4 * MiB);
  EXPECT_EQ(in(ordered_only.find(wanted, all)), nothing);
  EXPECT_EQ(in(ordered_only.find_with_wait(wanted, all)), nothing);
  EXPECT_EQ(polls(), before);
  EXPECT_FALSE(completed.uses.empty()) << "not promoted";
  auto const& ordered = add(4 * MiB, ordered_use(c, a));
  EXPECT_EQ(in(ordered_only.find(wanted, all)), (found{&ordered, reuse_tier::ordered}));
}

TEST_F(range_search_test, policy_completed_inserts_no_wait) {
  gpumem::detail::reuse_rules patient{reuse_policy::completed, false};
  gpumem::detail::range_search no_waits{reuse_policy::completed, patient};
  auto const& later = add(4 * MiB, waitable_use(b));
  auto const wanted = request(key_a, 4 * MiB);
  EXPECT_EQ(in(no_waits.find(wanted, all)), nothing);
  EXPECT_EQ(in(no_waits.find_with_wait(wanted, all)), nothing);
  simulator::run_until_idle();
  EXPECT_EQ(in(no_waits.find(wanted, all)), (found{&later, reuse_tier::completed}));
}

TEST_F(range_search_test, host_gets_only_completed_memory) {
  auto const& own = add(4 * MiB, waitable_use(a));
  EXPECT_EQ(find(host, 4 * MiB), nothing);
  EXPECT_EQ(find_with_wait(host, 4 * MiB), nothing);
  simulator::run_until_idle();
  EXPECT_EQ(find(host, 4 * MiB), (found{&own, reuse_tier::completed}));
}

TEST_F(range_search_test, stream_gets_only_completed_memory_if_the_host_may_touch_it_at_once) {
  gpumem::detail::reuse_rules strict{reuse_policy::wait, true};
  gpumem::detail::range_search host_memory{reuse_policy::wait, strict};
  auto const& own = add(4 * MiB, waitable_use(a));
  add(4 * MiB, ordered_use(b, a));
  auto const wanted = request(key_a, 4 * MiB);
  EXPECT_EQ(in(host_memory.find(wanted, all)), nothing) << "neither its own nor what it is ordered after";
  EXPECT_EQ(in(host_memory.find_with_wait(wanted, all)), nothing);
  simulator::run_until_idle();
  EXPECT_EQ(in(host_memory.find_without_poll(wanted, all)), nothing);
  EXPECT_EQ(in(host_memory.find(wanted, all)).second, reuse_tier::completed);
  EXPECT_TRUE(own.uses.completed());
}

// Under this policy complete ranges are not promoted, so that the search must visit the stream's own ones, too.
TEST_F(range_search_test, policy_ordered_finds_own_completed_memory_that_the_host_may_touch_at_once) {
  gpumem::detail::reuse_rules strict{reuse_policy::ordered, true};
  gpumem::detail::range_search host_memory{reuse_policy::ordered, strict};
  auto const& own = add(4 * MiB, completed_use(a));
  add(4 * MiB, open_use(a));
  auto const wanted = request(key_a, 4 * MiB);
  EXPECT_EQ(in(host_memory.find_without_poll(wanted, all)), (found{&own, reuse_tier::completed}));
}

// A share of 0 earns no time, so that the first poll overdraws the budget for ever.
TEST_F(range_search_test, spent_poll_budget_forbids_polls_unless_growth_has_failed) {
  pool_shard thrifty{0};
  all[0] = &thrifty;
  auto const& completed = add(4 * MiB, waitable_use(b));
  auto wanted = request(key_a, 4 * MiB);
  EXPECT_EQ(in(search.find(wanted, all)), nothing) << "polls, although the work has not run";
  auto const left = thrifty.poll_budget.left(gpumem::detail::sync::now());
  EXPECT_EQ(left, -gpumem::detail::time_budget::nanoseconds{std::chrono::nanoseconds{400}}) << "for one stream";
  simulator::run_until_idle();
  auto const before = polls();
  EXPECT_EQ(in(search.find(wanted, all)), nothing);
  EXPECT_EQ(polls(), before);
  wanted.growth_failed = true;
  EXPECT_EQ(in(search.find(wanted, all)), (found{&completed, reuse_tier::completed}));
  EXPECT_GT(polls(), before);
  EXPECT_EQ(thrifty.poll_budget.left(gpumem::detail::sync::now()), left) << "free of charge";
}

} // namespace
