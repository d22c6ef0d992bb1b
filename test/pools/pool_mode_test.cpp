// The mode of a pool: which facts switch the fast path, the caches and the events, and the limits that follow.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

import gpumem;

using gpumem::detail::derive_mode;
using gpumem::detail::event_threshold_of;
using gpumem::detail::granule;
using gpumem::detail::is_too_much;
using gpumem::detail::mode_facts;
using gpumem::detail::size_class;

namespace {

namespace tuning = gpumem::detail::tuning;
constexpr std::size_t MiB = std::size_t{1} << 20, GiB = 1024 * MiB;
using limits = std::array<std::size_t, size_class::kinds>; // small, medium, large

TEST(pool_mode_settings, each_fact_alone_switches_its_settings) {
  struct row {
    char const* fact;
    mode_facts facts;
    bool fast_path, caching, frees_record;
  };
  for (auto const& [fact, facts, fast_path, caching, frees_record] : {
           row{"none", {}, true, true, false},
           row{"shards", {.shards = 2}, true, true, false},
           row{"near_limit", {.near_limit = true}, true, true, true},
           row{"under_pressure", {.under_pressure = true}, false, false, true},
           row{"closed", {.closed = true}, false, false, true},
           row{"deferred_frees", {.deferred_frees = true}, false, false, true},
           row{"multi_stream", {.multi_stream = true}, true, true, false},
           row{"host_accessible", {.host_accessible = true}, true, false, false},
           row{"at the threshold", {.reserved = 8 * MiB, .release_threshold = 8 * MiB}, true, true, false},
           row{"beyond the threshold", {.reserved = 16 * MiB, .release_threshold = 8 * MiB}, false, false, true},
       }) {
    auto const mode = derive_mode(facts);
    EXPECT_EQ(mode.fast_path, fast_path) << fact;
    EXPECT_EQ(mode.caching, caching) << fact;
    EXPECT_EQ(mode.frees_record, frees_record) << fact;
  }
}

TEST(pool_mode_settings, several_shards_round_up_larger_sizes_too) {
  EXPECT_EQ(derive_mode({.shards = 1}).largest_numbered, tuning::largest_rounded_bytes);
  for (std::size_t const shards : {2, 65}) {
    EXPECT_EQ(derive_mode({.shards = shards}).largest_numbered, size_class::largest_medium);
  }
}

TEST(pool_mode_settings, caches_of_one_shard_have_a_part_of_the_reserved_bytes_up_to_a_limit) {
  auto const of = [](std::size_t reserved) { return derive_mode({.reserved = reserved}).cache_limits; };
  constexpr auto share = tuning::cached_bytes_per_shard;
  constexpr auto full = tuning::max_cache_fraction * share; // from here on each kind of size has its share
  EXPECT_EQ(of(0), (limits{}));
  EXPECT_EQ(of(full - 2 * granule), (limits{share - granule, share - granule, share - granule}));
  EXPECT_EQ(of(full), (limits{share, share, share}));
  EXPECT_EQ(of(tuning::small_cache_fraction * share), (limits{share, share, share}));
  EXPECT_EQ(of(tuning::small_cache_fraction * (share + granule)), (limits{share + granule, share, share}));
  EXPECT_EQ(of(1024 * GiB), (limits{tuning::max_cached_bytes, share, share}));
}

TEST(pool_mode_settings, caches_of_several_shards_have_more_above_all_for_medium_blocks) {
  auto const of = [](std::size_t shards, std::size_t reserved) {
    return derive_mode({.reserved = reserved, .shards = shards}).cache_limits;
  };
  constexpr auto share = tuning::cached_bytes_per_shard, most = tuning::max_cached_bytes;
  constexpr auto factor = tuning::medium_cache_factor;
  constexpr auto half = MiB / tuning::max_cache_fraction;
  EXPECT_EQ(of(2, MiB), (limits{half, half, half})) << "the reserved bytes bound each limit";
  EXPECT_EQ(of(2, GiB), (limits{GiB / tuning::small_cache_fraction, 2 * factor * share, 2 * share}));
  EXPECT_EQ(of(65, 1024 * GiB), (limits{most, factor * most, most}));
}

TEST(pool_mode_settings, threads_with_a_shard_of_their_own_share_the_limits) {
  EXPECT_EQ(derive_mode({.shards = 1}).cache_threads, 1u);
  EXPECT_EQ(derive_mode({.shards = 2}).cache_threads, 1u) << "the first shard belongs to no thread";
  EXPECT_EQ(derive_mode({.shards = 65}).cache_threads, 64u);
}

TEST(pool_mode_settings, frees_are_counted_for_events_only_with_several_streams) {
  EXPECT_FALSE(derive_mode({.reserved = GiB}).threshold.counts_frees());
  EXPECT_FALSE(derive_mode({.reserved = GiB, .near_limit = true}).threshold.counts_frees());
  for (bool const near : {false, true}) {
    auto const mode = derive_mode({.reserved = GiB, .near_limit = near, .multi_stream = true});
    EXPECT_EQ(mode.threshold.bytes(), event_threshold_of(GiB, near));
  }
}

TEST(pool_mode_settings, events_are_due_after_a_part_of_the_reserved_bytes) {
  EXPECT_EQ(event_threshold_of(GiB, false), GiB / tuning::event_fraction);
  EXPECT_EQ(event_threshold_of(GiB, true), GiB / tuning::event_fraction_near_limit);
  EXPECT_EQ(event_threshold_of(0, false), gpumem::detail::stream_epochs::max_silent_bytes)
      << "not at each free of a small pool";
  EXPECT_EQ(event_threshold_of(0, true), granule) << "never at each free";
  EXPECT_EQ(event_threshold_of(granule * tuning::event_fraction_near_limit, true), granule);
}

TEST(pool_mode_settings, background_release_begins_a_part_of_the_threshold_beyond_it) {
  constexpr auto slack = MiB;
  EXPECT_FALSE(is_too_much(8 * MiB + slack, 8 * MiB));
  EXPECT_TRUE(is_too_much(8 * MiB + slack + 1, 8 * MiB));
  EXPECT_FALSE(is_too_much(0, 8 * MiB)) << "less than the slack";
  EXPECT_FALSE(is_too_much(0, 0));
  EXPECT_TRUE(is_too_much(1, 0));
  EXPECT_FALSE(is_too_much(SIZE_MAX, SIZE_MAX)) << "no threshold";
}

class pool_mode_test : public gpumem_test::simulated_test {
protected:
  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  void reserve(std::size_t bytes) {
    chunks.add(reinterpret_cast<void*>(std::uintptr_t{1} << 40), bytes);
    mode.on_reserved_changed();
  }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  gpumem::pool_options options{.release_threshold = 32 * MiB};
  gpumem::detail::reuse_rules rules{gpumem::reuse_policy::wait, false};
  gpumem::detail::chunk_list chunks{64 * MiB};
  gpumem::detail::shard_list shards;
  gpumem::detail::admission requests;
  gpumem::detail::thread_caches caches;
  gpumem::detail::pool_mode mode{options, rules, chunks, shards, requests, caches};
};

TEST_F(pool_mode_test, changed_facts_reach_the_thread_caches_at_once) {
  EXPECT_FALSE(caches.enabled()) << "not before the first update";
  mode.update();
  EXPECT_TRUE(mode.fast_path());
  EXPECT_TRUE(caches.enabled());
  for (auto const set :
       {&gpumem::detail::pool_mode::set_under_pressure, &gpumem::detail::pool_mode::set_deferred_frees}) {
    (mode.*set)(true);
    EXPECT_FALSE(mode.fast_path());
    EXPECT_FALSE(caches.enabled());
    (mode.*set)(false);
    EXPECT_TRUE(mode.fast_path());
    EXPECT_TRUE(caches.enabled());
  }
  requests.set_closed();
  mode.update();
  EXPECT_FALSE(caches.enabled());
}

TEST_F(pool_mode_test, pool_without_a_handle_keeps_no_blocks) {
  mode.update();
  mode.set_no_handles();
  EXPECT_TRUE(mode.no_handles());
  EXPECT_FALSE(mode.fast_path());
  EXPECT_FALSE(caches.enabled());
}

TEST_F(pool_mode_test, one_lock_serves_the_first_stream_until_there_is_a_second) {
  mode.update();
  EXPECT_FALSE(mode.may_use_one_lock(of(a))) << "not known yet";
  mode.add_stream(of(a));
  mode.add_stream(of(a));
  EXPECT_FALSE(mode.multi_stream());
  EXPECT_FALSE(caches.threshold().counts_frees());
  EXPECT_TRUE(mode.may_use_one_lock(of(a)));
  EXPECT_FALSE(mode.may_use_one_lock(of(b)));
  mode.add_stream(of(b));
  EXPECT_TRUE(mode.multi_stream());
  EXPECT_EQ(caches.threshold().bytes(), mode.event_threshold_bytes()) << "from now on frees record events";
  for (auto const* const each : {&a, &b}) EXPECT_TRUE(mode.may_use_one_lock(of(*each)));
  mode.set_under_pressure(true);
  EXPECT_FALSE(mode.may_use_one_lock(of(a)));
}

TEST_F(pool_mode_test, reserved_bytes_are_compared_with_the_limit_and_the_release_threshold) {
  reserve(32 * MiB);
  EXPECT_FALSE(mode.near_limit());
  EXPECT_FALSE(mode.too_much_reserved());
  chunks.add_reserved(8 * MiB);
  mode.on_reserved_changed();
  EXPECT_FALSE(mode.near_limit());
  EXPECT_TRUE(mode.too_much_reserved());
  EXPECT_FALSE(mode.fast_path());
  chunks.begin_release(16 * MiB);
  mode.on_reserved_changed();
  EXPECT_TRUE(mode.fast_path());
  EXPECT_FALSE(mode.frees_record());
  chunks.set_limit(25 * MiB);
  mode.update();
  EXPECT_TRUE(mode.near_limit());
  EXPECT_TRUE(mode.frees_record());
}

} // namespace
