// How a pool gets chunks from its upstream, moves them between shards, and gives them back.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

import gpumem;
#include "backend_fixture.hpp"

using gpumem::outcome;
using gpumem::detail::fits;
using gpumem::detail::granule;
using gpumem::detail::reuse_tier;
using gpumem::detail::stream_use;
using gpumem_test::MiB;

namespace {

namespace tuning = gpumem::detail::tuning;

class chunk_backend_test : public gpumem_test::backend_fixture {
protected:
  void make(gpumem::pool_options options = {}) {
    backend_fixture::make(std::make_unique<gpumem_test::test_upstream<gpumem_test::recording_upstream>>(upstream),
                          options);
  }
  auto drawn() const { return upstream.state().draws(); }

  gpumem_test::recording_upstream upstream;
};

TEST_F(chunk_backend_test, growth_gives_a_place_that_fits_and_memory_to_spare) {
  make();
  auto const got = grow(request(3 * MiB, MiB), false);
  ASSERT_TRUE(got.is_done());
  auto const& range = *got.value().range;
  std::size_t offset = 0;
  EXPECT_TRUE(range.is_free());
  EXPECT_TRUE(fits(range, 3 * MiB, MiB, offset));
  EXPECT_EQ(got.value().offset, offset);
  EXPECT_EQ(range.bytes, 2 * tuning::min_chunk_bytes);
  ASSERT_EQ(drawn().size(), 1u);
  EXPECT_EQ(drawn()[0].bytes, range.bytes);
  EXPECT_EQ(shard->reserved, range.bytes);
  EXPECT_EQ(parts->chunks.reserved(), range.bytes);
  EXPECT_EQ(range.parent->shard, shard);
  EXPECT_FALSE(range.uses.completed()) << "memory of the upstream is valid in the order of the stream";
  EXPECT_EQ(grow(request(3 * MiB)).value().range->bytes, 3 * MiB) << "an exact growth has nothing to spare";
}

TEST_F(chunk_backend_test, growth_takes_less_if_the_upstream_has_no_memory_to_spare) {
  make();
  upstream.state().capacity = 3 * MiB;
  auto const got = grow(request(3 * MiB), false);
  ASSERT_TRUE(got.is_done());
  EXPECT_EQ(got.value().range->bytes, 3 * MiB);
  auto const more = grow(request(MiB), false);
  ASSERT_TRUE(more.has_failed());
  EXPECT_EQ(more.error().reason, outcome::exhausted);
  EXPECT_EQ(parts->chunks.reserved(), 3 * MiB);
  EXPECT_FALSE(parts->backend->growing());
}

TEST_F(chunk_backend_test, growth_beyond_the_limit_fails_and_asks_the_upstream_for_nothing) {
  make({.limit = 5 * MiB});
  ASSERT_TRUE(grow(request(4 * MiB)).is_done());
  auto const got = grow(request(2 * MiB));
  ASSERT_TRUE(got.has_failed());
  EXPECT_EQ(got.error(), (gpumem::failure{outcome::exhausted, 0, 2 * MiB - 1})) << "with the requested bytes";
  EXPECT_EQ(drawn().size(), 1u);
  EXPECT_TRUE(parts->mode.near_limit()) << "the mode is told of each growth";
  ASSERT_TRUE(grow(request(MiB), false).is_done());
  EXPECT_EQ(parts->chunks.reserved(), 5 * MiB) << "memory to spare ends at the limit";
  complete_all();
  release(0);
  EXPECT_FALSE(parts->mode.near_limit()) << "and of each release";
}

TEST_F(chunk_backend_test, pool_grows_up_to_given_bytes) {
  make({.limit = 16 * MiB});
  EXPECT_EQ(grow_to(4 * MiB + 1).value_or(0), 4 * MiB + granule);
  EXPECT_EQ(grow_to(4 * MiB).value_or(1), 0u) << "it has more";
  EXPECT_EQ(grow_to(32 * MiB).value_or(0), 12 * MiB - granule) << "as far as the limit allows";
  EXPECT_EQ(drawn().size(), 2u);
}

TEST_F(chunk_backend_test, release_gives_back_only_complete_memory) {
  make();
  ASSERT_TRUE(grow(request(4 * MiB)).is_done());
  auto& live = grown(8 * MiB);
  EXPECT_EQ(release(0), 0u) << "the streams have not begun to use it";
  complete_all();
  EXPECT_EQ(release(0), 4 * MiB);
  EXPECT_EQ(shard->reserved, 8 * MiB);
  free_in_use(live);
  EXPECT_EQ(release(0), 0u);
  complete_all();
  EXPECT_EQ(release(0), 8 * MiB);
  EXPECT_EQ(upstream.state().returns().size(), 2u);
  EXPECT_EQ(shard->counts.upstream_frees, 2u);
}

TEST_F(chunk_backend_test, release_leaves_the_bytes_to_keep) {
  make();
  for (auto const bytes : {2 * MiB, 4 * MiB, 8 * MiB}) ASSERT_TRUE(grow(request(bytes)).is_done());
  complete_all();
  EXPECT_EQ(release(14 * MiB), 0u);
  EXPECT_EQ(release(9 * MiB), 4 * MiB) << "the largest chunk without which enough is left";
  EXPECT_EQ(release(1 * MiB), 8 * MiB);
  EXPECT_EQ(parts->chunks.reserved(), 2 * MiB);
}

TEST_F(chunk_backend_test, release_for_a_request_gives_back_all_chunks_that_are_complete) {
  make({.limit = 8 * MiB});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(grow(request(4 * MiB)).is_done());
  complete_all();
  EXPECT_TRUE(grow(request(8 * MiB)).has_failed());
  EXPECT_FALSE(move_at_limit(request(8 * MiB))) << "chunks cannot be moved together";
  release_for(request(8 * MiB));
  EXPECT_TRUE(grow(request(8 * MiB)).is_done());
}

TEST_F(chunk_backend_test, free_chunk_migrates_to_the_shard_of_a_request) {
  make();
  auto& other = add_shard();
  auto* const first = std::exchange(shard, &other);
  ASSERT_TRUE(grow(request(4 * MiB)).is_done());
  shard = first;
  EXPECT_FALSE(migrate_chunk(request(4 * MiB + granule))) << "too small";
  auto const got = migrate_chunk(request(3 * MiB));
  ASSERT_TRUE(got);
  EXPECT_EQ(got.how, reuse_tier::same_stream);
  EXPECT_EQ(got.range->parent->shard, first);
  EXPECT_EQ(first->reserved, 4 * MiB);
  EXPECT_EQ(other.reserved, 0u);
  EXPECT_EQ(first->ranges.free_bytes(), 4 * MiB);
  EXPECT_EQ(other.ranges.free_bytes(), 0u);
  EXPECT_EQ(first->counters.chunks_migrated, 1u);
  EXPECT_FALSE(migrate_chunk(request(3 * MiB))) << "it is there already";
}

TEST_F(chunk_backend_test, chunk_in_use_stays_in_its_shard) {
  make();
  auto& other = add_shard();
  auto* const first = std::exchange(shard, &other);
  auto& live = grown(4 * MiB);
  shard = first;
  EXPECT_FALSE(migrate_chunk(request(2 * MiB))) << "it has a live block";
  live.uses.assign(stream_use{&of(b), of(b).epochs().advance()});
  other.ranges.free(live, gpumem::detail::range_allocator::coalescing::same_streams);
  EXPECT_FALSE(migrate_chunk(request(2 * MiB))) << "another stream still uses it";
  complete_all();
  EXPECT_EQ(migrate_chunk(request(2 * MiB)).how, reuse_tier::completed);
}

} // namespace
