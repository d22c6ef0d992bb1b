// How a pool maps pages, moves free ones to where memory is missing, and unmaps them.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

import gpumem;
#include "backend_fixture.hpp"

using gpumem::outcome;
using gpumem_test::MiB;

namespace {

class page_backend_test : public gpumem_test::backend_fixture {
protected:
  void make(gpumem::pool_options options = {}) {
    gpumem::cuda_resource const none{device};
    backend_fixture::make(std::make_unique<gpumem_test::test_upstream<gpumem::cuda_resource>>(none, device), options);
  }
  std::size_t mapped_bytes() const { return parts->upstream->pages()->held_bytes(); }
  // Fills the pool up to 8 MiB with four blocks of one page each, and frees the first and the third.
  void make_scattered(bool complete, gpumem::pool_options options) {
    make(options);
    for (auto& each : blocks) each = &grown(2 * MiB);
    for (auto* const each : {blocks[0], blocks[2]}) complete ? free_complete(*each) : free_in_use(*each);
  }
  void TearDown() override {
    if (parts && blocks[0]) {
      for (auto* const each : {blocks[1], blocks[3]}) free_complete(*each);
    }
    backend_fixture::TearDown();
  }

  block* blocks[4] = {};
};

TEST_F(page_backend_test, growth_continues_the_range_of_its_stream) {
  make();
  auto const first = grow(request(5 * MiB, MiB));
  ASSERT_TRUE(first.is_done());
  std::uintptr_t const base = first.value().range->base;
  EXPECT_EQ(first.value().range->bytes, 6 * MiB) << "whole pages";
  EXPECT_EQ(parts->chunks.reserved(), 6 * MiB);
  auto const more = grow(request(10 * MiB));
  ASSERT_TRUE(more.is_done());
  EXPECT_EQ(more.value().range->base, base);
  EXPECT_EQ(more.value().range->bytes, 10 * MiB);
  EXPECT_EQ(more.value().offset, 0u);
  EXPECT_EQ(shard->reserved, 10 * MiB);
  EXPECT_EQ(mapped_bytes(), 10 * MiB);
}

TEST_F(page_backend_test, growth_joins_ready_memory_before_it) {
  make();
  EXPECT_TRUE(grow_to(4 * MiB));
  auto const got = grow(request(6 * MiB));
  ASSERT_TRUE(got.is_done());
  EXPECT_EQ(got.value().range->bytes, 6 * MiB);
  EXPECT_EQ(parts->chunks.reserved(), 6 * MiB) << "only the missing page was mapped";
}

TEST_F(page_backend_test, filled_hole_joins_the_free_ranges_on_both_sides) {
  make({.effort = 0});
  auto& low = grown(2 * MiB);
  auto& middle = grown(2 * MiB);
  auto& high = grown(2 * MiB);
  auto& last = grown(2 * MiB);
  auto const base = reinterpret_cast<std::uintptr_t>(low.pointer());
  free_complete(middle);
  EXPECT_EQ(release(0), 2 * MiB);
  for (auto* const each : {&low, &high}) free_complete(*each);
  promote_completed(); // new memory counts as used by its stream: so its neighbours are on another free list
  auto const got = grow(request(6 * MiB), false);
  ASSERT_TRUE(got.is_done());
  EXPECT_EQ(got.value().range->base, base);
  EXPECT_EQ(got.value().range->bytes, 6 * MiB);
  EXPECT_EQ(parts->chunks.reserved(), 8 * MiB);
  free_complete(last);
}

TEST_F(page_backend_test, growth_beyond_the_limit_fails_and_maps_nothing) {
  make({.limit = 8 * MiB});
  grown(6 * MiB);
  auto const got = grow(request(4 * MiB));
  ASSERT_TRUE(got.has_failed());
  EXPECT_EQ(got.error(), (gpumem::failure{outcome::exhausted, 0, 4 * MiB - 1}));
  EXPECT_EQ(parts->chunks.reserved(), 6 * MiB);
  EXPECT_EQ(mapped_bytes(), 6 * MiB);
  free_complete(*shard->addresses.back()->mapped->first);
}

TEST_F(page_backend_test, growth_beyond_the_addresses_fails) {
  make();
  auto const got = grow(request(512 * MiB));
  ASSERT_TRUE(got.has_failed());
  EXPECT_EQ(got.error().reason, outcome::exhausted) << "the upstream's too_large";
  EXPECT_EQ(parts->chunks.reserved(), 0u);
  EXPECT_FALSE(parts->backend->growing());
}

TEST_F(page_backend_test, pool_grows_up_to_given_bytes_in_whole_pages) {
  make({.limit = 8 * MiB + MiB});
  EXPECT_EQ(grow_to(4 * MiB).value_or(0), 4 * MiB);
  EXPECT_EQ(grow_to(4 * MiB).value_or(1), 0u);
  EXPECT_EQ(grow_to(16 * MiB).value_or(0), 4 * MiB) << "the limit has no room for another page";
}

TEST_F(page_backend_test, release_gives_back_whole_complete_pages_down_to_the_bytes_to_keep) {
  make({.effort = 1}); // in the smallest pages
  auto& low = grown(8 * MiB);
  auto& high = grown(3 * MiB);
  free_in_use(low);
  EXPECT_EQ(release(0), 0u);
  complete_all();
  EXPECT_EQ(release(7 * MiB), 4 * MiB) << "whole pages, and never too many";
  EXPECT_EQ(parts->chunks.reserved(), 8 * MiB);
  EXPECT_EQ(release(0), 4 * MiB) << "the live block keeps both its pages";
  EXPECT_EQ(shard->reserved, 4 * MiB);
  EXPECT_EQ(mapped_bytes(), 4 * MiB);
  free_complete(high);
}

TEST_F(page_backend_test, pages_move_together_at_the_limit) {
  make_scattered(true, {.limit = 8 * MiB, .effort = 0});
  EXPECT_TRUE(grow(request(4 * MiB)).has_failed());
  auto const place = move_at_limit(request(4 * MiB));
  ASSERT_TRUE(place);
  EXPECT_EQ(place.range->bytes, 4 * MiB);
  EXPECT_EQ(place.range->base, blocks[3]->end());
  EXPECT_EQ(parts->chunks.reserved(), 8 * MiB);
  EXPECT_EQ(shard->reserved, 8 * MiB);
  EXPECT_EQ(mapped_bytes(), 8 * MiB);
  EXPECT_EQ(shard->counters.page_moves, 1u);
  EXPECT_EQ(parts->chunks.releasing(), 0u);
}

TEST_F(page_backend_test, pages_do_not_move_unless_they_are_enough_and_complete) {
  make_scattered(false, {.limit = 8 * MiB});
  EXPECT_FALSE(move_at_limit(request(4 * MiB))) << "still in use";
  complete_all();
  EXPECT_FALSE(move_at_limit(request(6 * MiB))) << "only two pages are free";
  EXPECT_EQ(shard->counters.page_moves, 0u);
  EXPECT_EQ(shard->ranges.free_bytes(), 4 * MiB);
  EXPECT_TRUE(move_at_limit(request(4 * MiB)));
}

TEST_F(page_backend_test, pages_stay_with_the_streams_under_the_policy_ordered) {
  make_scattered(true, {.limit = 8 * MiB, .cross_stream = gpumem::reuse_policy::ordered});
  EXPECT_FALSE(move_at_limit(request(4 * MiB)));
  EXPECT_FALSE(migrate_chunk(request(2 * MiB))) << "pages belong to the addresses of their shard";
}

TEST_F(page_backend_test, growth_moves_free_pages_before_it_maps_new_ones) {
  for (double const effort : {0., 1.}) {
    make_scattered(true, {.effort = effort});
    auto const got = grow(request(4 * MiB), false);
    ASSERT_TRUE(got.is_done());
    EXPECT_EQ(got.value().range->bytes, 4 * MiB);
    EXPECT_EQ(parts->chunks.reserved(), effort > 0 ? 8 * MiB : 12 * MiB) << "without a share of the time it maps";
    for (auto* const each : {blocks[1], blocks[3]}) free_complete(*each);
    blocks[0] = nullptr;
    release(0);
  }
}

TEST_F(page_backend_test, release_for_a_request_unmaps_the_missing_pages_only) {
  make_scattered(true, {.limit = 10 * MiB});
  release_for(request(4 * MiB));
  EXPECT_EQ(parts->chunks.reserved(), 6 * MiB) << "2 MiB were left below the limit";
  EXPECT_EQ(shard->counters.page_unmaps, 1u);
  auto const got = grow(request(4 * MiB));
  ASSERT_TRUE(got.is_done());
  EXPECT_EQ(got.value().range->bytes, 4 * MiB);
  EXPECT_EQ(parts->chunks.reserved(), 10 * MiB);
}

} // namespace
