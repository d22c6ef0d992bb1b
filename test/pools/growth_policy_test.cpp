// Where a pool over pages grows for a request, by how much, and in pages of which size.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::granule;
using gpumem::detail::largest_page;
using gpumem::detail::smallest_page;
using gpumem::detail::stream_use;
using gpumem::detail::stream_uses;
using gpumem::extend::page_extent;
using gpumem::extend::stream_key;

namespace {

namespace tuning = gpumem::detail::tuning;
constexpr std::size_t MiB = std::size_t{1} << 20, GiB = 1024 * MiB;

// The addresses of one shard, which a test lays out from the lowest on.
class growth_policy_test : public gpumem_test::simulated_test {
protected:
  growth_policy_test() { reserve_addresses(256 * MiB); }
  void reserve_addresses(std::size_t bytes) {
    auto pages = std::make_shared<gpumem::detail::page_store>(device, gpumem::virtual_pages_options{});
    shard.addresses.clear();
    shard.addresses.push_back(std::make_unique<gpumem::detail::address_range>(shard, std::move(pages), bytes, bytes));
  }
  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  gpumem::detail::address_range& in() const { return *shard.addresses.back(); }
  std::size_t end() const { return in().mapped ? in().mapped->bytes : 0; }

  // Adds memory with these uses at the end: one page, whatever its size.
  block& add_free(std::size_t bytes, stream_uses const& uses = {}) {
    EXPECT_TRUE(in().pages.map(end(), bytes, bytes));
    shard.reserved += bytes;
    auto*& mapped = in().mapped;
    if (mapped) {
      chunks.add_reserved(bytes);
      return shard.ranges.extend(*mapped, bytes, uses);
    }
    mapped = &chunks.add(in().pages.base(), bytes);
    mapped->shard = &shard;
    mapped->addresses = &in();
    return shard.ranges.add(*mapped, uses);
  }
  block& add_free(std::size_t bytes, gpumem::stream const& used_on) {
    return add_free(bytes, stream_uses{stream_use{&of(used_on), of(used_on).current_epoch()}});
  }
  block& add_live(std::size_t bytes, gpumem::stream const& on) {
    auto& live = shard.ranges.split_off(add_free(bytes), 0, bytes);
    live.stream = &of(on);
    return live;
  }
  void add_hole(std::size_t bytes) {
    auto& made = shard.ranges.extend(*in().mapped, bytes, {});
    shard.ranges.make_hole(made, made.end() - bytes, bytes);
  }
  void add_shard() {
    gpumem::detail::all_shards_lock const held{shards};
    shards.begin_allocation(1, false);
    shards.add_for_thread();
    shards.begin_allocation(1, false);
  }

  auto plan(stream_key const& key, std::size_t bytes, bool exact, std::size_t alignment = granule) const {
    return policy.plan({.key = key,
                        .requested = bytes,
                        .bytes = bytes,
                        .class_number = gpumem::detail::size_class::count,
                        .alignment = alignment,
                        .thread = 0,
                        .shard = &shard},
                       shard, exact);
  }
  // Returns the offset at which the plan maps its bytes.
  std::size_t place_of(gpumem::detail::growth_plan const& made) const {
    return made.hole ? made.offset(made.bytes) : in().pages.mapped_end();
  }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  stream_key const key_a = a.key(), key_b = b.key();
  gpumem::detail::chunk_list chunks{0};
  gpumem::detail::shard_list shards;
  gpumem::detail::reuse_rules rules{gpumem::reuse_policy::wait, false};
  gpumem::detail::growth_policy policy{chunks, shards, rules};
  gpumem::detail::pool_shard& shard = *shards.all().front();
};

TEST_F(growth_policy_test, first_growth_is_at_the_start_in_whole_pages) {
  auto const first = plan(key_a, smallest_page + granule, true);
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->hole);
  EXPECT_EQ(first->bytes, 2 * smallest_page);
  EXPECT_EQ(first->beside, 0u);
  shard.addresses.clear();
  EXPECT_FALSE(plan(key_a, granule, false)) << "before there are addresses";
}

TEST_F(growth_policy_test, only_the_missing_bytes_are_mapped_after_a_usable_range) {
  add_live(2 * MiB, b);
  auto const& last = add_free(4 * MiB, a);
  auto const own = plan(key_a, 10 * MiB, true);
  EXPECT_EQ(own->bytes, 6 * MiB);
  EXPECT_EQ(own->beside, last.base);
  EXPECT_EQ(plan(key_a, 3 * MiB, true)->bytes, smallest_page) << "it grows, even if the range suffices";
  auto const other = plan(key_b, 10 * MiB, true);
  EXPECT_EQ(other->bytes, 10 * MiB) << "another stream still uses it";
  EXPECT_EQ(other->beside, 0u);
}

TEST_F(growth_policy_test, range_counts_only_if_it_ends_where_the_mapped_addresses_end) {
  add_free(4 * MiB, a);
  ASSERT_TRUE(in().pages.map(8 * MiB, 2 * MiB)); // pages that the driver did not unmap
  auto const made = plan(key_a, 10 * MiB, true);
  EXPECT_EQ(made->bytes, 10 * MiB);
  EXPECT_EQ(made->beside, 0u);
}

TEST_F(growth_policy_test, range_is_usable_if_no_other_stream_uses_it) {
  auto const& live = add_live(2 * MiB, a);
  auto const& own = add_free(2 * MiB, a);
  auto const& wall = add_live(2 * MiB, a);
  auto const& ready = add_free(2 * MiB);
  EXPECT_FALSE(policy.usable(nullptr, key_a));
  for (auto const* const each : {&live, &wall}) EXPECT_FALSE(policy.usable(each, key_a));
  EXPECT_TRUE(policy.usable(&own, key_a));
  EXPECT_FALSE(policy.usable(&own, key_b));
  EXPECT_FALSE(policy.usable(&own, stream_key::host())) << "not complete";
  for (auto const& each : {key_a, key_b, stream_key::host()}) EXPECT_TRUE(policy.usable(&ready, each));
}

TEST_F(growth_policy_test, growth_with_memory_to_spare_uses_pages_of_the_usual_size) {
  reserve_addresses(GiB);
  add_live(2 * smallest_page * tuning::page_fraction, a);
  auto const usual = policy.usual_page(shard.reserved);
  ASSERT_EQ(usual, 2 * smallest_page);
  auto const spare = plan(key_a, granule, false);
  EXPECT_EQ(spare->bytes, usual);
  EXPECT_EQ(spare->least, smallest_page) << "if the device has less";
  EXPECT_EQ(plan(key_a, granule, true)->bytes, smallest_page);
  EXPECT_EQ(plan(key_a, usual + granule, false)->bytes, 2 * usual);
}

TEST_F(growth_policy_test, one_of_several_shards_grows_by_a_part_of_its_bytes) {
  add_live(64 * MiB, a);
  EXPECT_EQ(plan(key_a, MiB, false)->bytes, 2 * MiB);
  add_shard();
  auto const part = 64 * MiB / 8;
  auto const spare = plan(key_a, MiB, false);
  EXPECT_EQ(spare->bytes, part);
  EXPECT_EQ(spare->least, 2 * MiB);
  EXPECT_EQ(plan(key_a, MiB, true)->bytes, 2 * MiB);
  EXPECT_EQ(plan(key_a, 3 * MiB, false)->bytes, 4 * MiB) << "large blocks of all threads share the first shard";
  chunks.set_limit(64 * MiB + part);
  EXPECT_EQ(plan(key_a, MiB, false)->bytes, part);
  chunks.set_limit(64 * MiB + part - granule);
  EXPECT_EQ(plan(key_a, MiB, false)->bytes, 2 * MiB) << "within the limit";
}

TEST_F(growth_policy_test, alignment_is_paid_for_where_the_addresses_are_not_aligned) {
  EXPECT_EQ(plan(key_a, 4 * MiB, true, 2 * MiB)->bytes, 4 * MiB) << "pages are aligned to their size";
  add_live(2 * MiB, b);
  EXPECT_EQ(plan(key_a, 4 * MiB, true, 2 * MiB)->bytes, 4 * MiB);
  EXPECT_EQ(plan(key_a, 4 * MiB, true)->bytes, 4 * MiB);
  auto const address = reinterpret_cast<std::uintptr_t>(in().pages.base()) + end();
  auto const skipped = (0 - address) & (8 * MiB - 1);
  EXPECT_EQ(plan(key_a, 4 * MiB, true, 8 * MiB)->bytes, 4 * MiB + skipped);
}

TEST_F(growth_policy_test, hole_with_the_fewest_missing_bytes_is_filled) {
  add_live(2 * MiB, b);
  add_free(2 * MiB, a);
  add_hole(6 * MiB);
  add_live(2 * MiB, b);
  auto const& below = add_free(4 * MiB, a);
  add_hole(6 * MiB);
  add_live(2 * MiB, b);
  auto const made = plan(key_a, 8 * MiB, false);
  ASSERT_TRUE(made && made->hole);
  EXPECT_EQ(*made->hole, (page_extent{16 * MiB, 6 * MiB}));
  EXPECT_EQ(made->bytes, 4 * MiB);
  EXPECT_EQ(made->beside, below.base);
  EXPECT_EQ(place_of(*made), 16 * MiB) << "upwards, from the range below";
  EXPECT_FALSE(plan(key_a, 8 * MiB, true)->hole) << "an exact growth is at the end, while there are addresses";
  EXPECT_FALSE(plan(key_b, 8 * MiB, false)->hole) << "the holes are too small for a stream that may not use the ranges";
}

TEST_F(growth_policy_test, hole_below_a_larger_range_is_filled_downwards) {
  add_live(2 * MiB, b);
  add_free(2 * MiB, a);
  add_hole(8 * MiB);
  auto const& above = add_free(4 * MiB, a);
  add_live(2 * MiB, b);
  auto const made = plan(key_a, 6 * MiB, false);
  ASSERT_TRUE(made && made->hole);
  EXPECT_EQ(made->bytes, 2 * MiB);
  EXPECT_EQ(made->beside, above.base);
  EXPECT_TRUE(made->downwards);
  EXPECT_EQ(place_of(*made), 10 * MiB) << "it ends where the range starts";
  auto const whole = plan(key_a, 14 * MiB, false);
  ASSERT_TRUE(whole && whole->hole);
  EXPECT_EQ(whole->bytes, 8 * MiB) << "with both ranges the hole suffices, but only as a whole";
}

TEST_F(growth_policy_test, hole_between_ranges_of_equal_size_is_filled_upwards) {
  add_free(2 * MiB, a);
  add_hole(4 * MiB);
  add_free(2 * MiB, a);
  add_live(2 * MiB, b);
  auto const made = plan(key_a, 4 * MiB, false);
  ASSERT_TRUE(made && made->hole);
  EXPECT_FALSE(made->downwards);
  EXPECT_EQ(place_of(*made), 2 * MiB);
}

TEST_F(growth_policy_test, hole_is_filled_within_the_limit) {
  add_live(2 * MiB, b);
  add_free(4 * MiB, a);
  add_hole(4 * MiB);
  add_live(2 * MiB, b);
  auto const reserved = chunks.reserved();
  chunks.set_limit(reserved + 4 * MiB);
  auto const fits = plan(key_a, 8 * MiB, true);
  ASSERT_TRUE(fits && fits->hole) << "the end would take more than the limit";
  EXPECT_EQ(fits->bytes, 4 * MiB);
  chunks.set_limit(reserved + 4 * MiB - granule);
  auto const beyond = plan(key_a, 8 * MiB, true);
  ASSERT_TRUE(beyond);
  EXPECT_FALSE(beyond->hole);
  EXPECT_EQ(beyond->bytes, 8 * MiB) << "the caller has to make way for it";
}

TEST_F(growth_policy_test, among_equal_places_the_stream_grows_in_its_own_segment) {
  add_live(2 * MiB, b);
  add_hole(4 * MiB);
  add_live(2 * MiB, a);
  add_hole(4 * MiB);
  add_live(2 * MiB, b);
  auto const made = plan(key_a, 4 * MiB, false);
  ASSERT_TRUE(made && made->hole);
  EXPECT_EQ(place_of(*made), 8 * MiB) << "after its own block";
  auto const other = plan(key_b, 4 * MiB, false);
  ASSERT_TRUE(other);
  EXPECT_FALSE(other->hole) << "after the last of its blocks there are more addresses than in the hole";
}

TEST_F(growth_policy_test, second_stream_gets_a_segment_of_its_own) {
  auto const step = in().pages.address_space() / tuning::segment_fraction;
  add_free(2 * MiB, a);
  add_live(step, a);
  EXPECT_FALSE(plan(key_b, 2 * MiB, false)->hole) << "no other stream has free memory yet";
  add_free(2 * MiB, b);
  add_live(2 * MiB, a);
  auto const made = plan(key_b, 2 * MiB, false);
  ASSERT_TRUE(made && made->hole);
  EXPECT_EQ(*made->hole, (page_extent{3 * step, in().pages.address_space() - 3 * step}));
  EXPECT_EQ(made->bytes, 2 * MiB);
  EXPECT_EQ(place_of(*made), 3 * step);
  EXPECT_FALSE(plan(key_b, 2 * MiB, true)->hole) << "not for an exact growth";
  EXPECT_FALSE(plan(key_a, 2 * MiB, false)->hole) << "its segment ends there";
  EXPECT_FALSE(plan(stream_key::host(), 2 * MiB, false)->hole) << "the host has none";
}

TEST_F(growth_policy_test, segments_begin_in_the_lower_half_of_the_addresses) {
  auto const space = in().pages.address_space(), step = space / tuning::segment_fraction;
  add_free(2 * MiB, a);
  add_live(2 * MiB, a);
  add_free(2 * MiB, b);
  add_live(space / 2 - step - 6 * MiB, a);
  auto const lower = plan(key_b, 2 * MiB, false);
  ASSERT_TRUE(lower && lower->hole);
  EXPECT_EQ(place_of(*lower), space / 2 - step);
  add_live(2 * MiB, a);
  EXPECT_FALSE(plan(key_b, 2 * MiB, false)->hole);
}

TEST_F(growth_policy_test, nothing_is_planned_where_the_addresses_end) {
  reserve_addresses(16 * MiB);
  add_live(2 * MiB, a);
  add_hole(4 * MiB);
  add_live(6 * MiB, a);
  for (bool const exact : {false, true}) {
    EXPECT_FALSE(plan(key_a, 4 * MiB, exact)->hole) << "the end has room";
    EXPECT_FALSE(plan(key_a, 6 * MiB, exact)) << "neither the hole nor the end has this many addresses";
  }
  add_live(4 * MiB, a);
  for (bool const exact : {false, true}) {
    EXPECT_TRUE(plan(key_a, 4 * MiB, exact)->hole) << "only the hole is left";
    EXPECT_FALSE(plan(key_a, 4 * MiB + granule, exact));
  }
}

TEST_F(growth_policy_test, pages_grow_with_the_mapped_bytes_within_bounds) {
  EXPECT_EQ(policy.usual_page(shard.reserved), smallest_page);
  reserve_addresses(16 * GiB);
  add_live(4 * smallest_page * tuning::page_fraction, a);
  EXPECT_EQ(policy.usual_page(shard.reserved), 4 * smallest_page);
  EXPECT_EQ(policy.min_moved_page(shard.reserved), smallest_page * tuning::min_moved_quarters);
  add_live(largest_page * tuning::page_fraction, a);
  EXPECT_EQ(policy.usual_page(shard.reserved), largest_page);
}

TEST_F(growth_policy_test, growth_has_larger_pages_rather_than_more_than_its_bound) {
  auto const size = [&](std::size_t bytes, std::size_t max_pages) {
    return policy.page_size(shard.reserved, bytes, max_pages);
  };
  EXPECT_EQ(size(24 * MiB, SIZE_MAX), smallest_page);
  EXPECT_EQ(size(24 * MiB, 4), 6 * MiB);
  EXPECT_EQ(size(24 * MiB, 5), 6 * MiB) << "whole granules";
  EXPECT_EQ(size(24 * MiB, 1), 24 * MiB);
  EXPECT_EQ(size(24 * MiB, 0), 24 * MiB) << "one page at least";
  EXPECT_EQ(size(256 * MiB, 1), largest_page);
}

TEST_F(growth_policy_test, pages_under_a_limit_are_a_part_of_it_and_never_larger_than_without) {
  auto const size = [&](std::size_t bytes) { return policy.page_size(shard.reserved, bytes, 1); };
  chunks.set_limit(GiB);
  EXPECT_EQ(size(200 * MiB), smallest_page) << "whatever the number of pages";
  chunks.set_limit(2 * smallest_page * tuning::limit_page_fraction);
  EXPECT_EQ(size(0), smallest_page) << "while little is mapped";
  EXPECT_EQ(size(2 * smallest_page * tuning::page_fraction), 2 * smallest_page);
  EXPECT_EQ(size(8 * smallest_page * tuning::page_fraction), 2 * smallest_page);
}

} // namespace
