// The stream cache alone: which block it returns, which stream owns it, and when a free should record an event.
// SPDX-License-Identifier: Apache-2.0
#include "cache_fixture.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::event_threshold;
using gpumem::detail::stream_cache;

namespace {

constexpr auto close = gpumem::detail::stream_cache::first_close_class;

class stream_cache_test : public gpumem_test::cache_fixture {
protected:
  block& push(block& one, unsigned number) {
    one.class_number = static_cast<std::uint8_t>(number);
    cache.push(one);
    return one;
  }

  std::array<block, 3> row;
  stream_cache cache;
};

TEST_F(stream_cache_test, newest_block_of_a_class_or_of_the_next_two_is_popped) {
  push(row[0], close + 2);
  push(row[1], close + 2);
  EXPECT_EQ(cache.count, 2u);
  EXPECT_EQ(cache.pop_fitting(close - 1), nullptr);
  EXPECT_EQ(cache.pop_fitting(close), &row[1]);
  EXPECT_EQ(cache.pop_fitting(close + 2), &row[0]);
  EXPECT_EQ(cache.count, 0u);
}

TEST_F(stream_cache_test, largest_block_is_popped_for_an_eviction) {
  push(row[0], 1);
  push(row[1], close);
  push(row[2], 2);
  EXPECT_EQ(&cache.pop_largest(), &row[1]);
  EXPECT_EQ(&cache.pop_largest(), &row[2]);
}

TEST_F(stream_cache_test, stream_gets_only_an_empty_cache) {
  EXPECT_TRUE(cache.bind_if_empty(of(a), event_threshold::never()));
  push(row[0], 1);
  EXPECT_FALSE(cache.bind_if_empty(of(b), event_threshold::never()));
  EXPECT_EQ(cache.timeline, &of(a));
  cache.pop_largest();
  EXPECT_TRUE(cache.bind_if_empty(of(b), event_threshold::never()));
  EXPECT_EQ(cache.timeline, &of(b));
}

TEST_F(stream_cache_test, counts_of_a_stream_are_passed_on_before_the_next_stream_comes) {
  EXPECT_TRUE(cache.bind_if_empty(of(a), event_threshold{1000}));
  EXPECT_FALSE(cache.event_due(of(a), 600, event_threshold{1000}));
  EXPECT_TRUE(cache.bind_if_empty(of(b), event_threshold{1000}));
  EXPECT_EQ(cache.unrecorded_frees, 0u);
  EXPECT_FALSE(of(a).event_request().raised());
  EXPECT_TRUE(stream_cache::event_due_unbound(of(a), 600, event_threshold{1000})) << "1,200 bytes with those before";
}

TEST_F(stream_cache_test, event_is_due_after_a_batch_of_frees_or_many_bytes) {
  EXPECT_TRUE(cache.bind_if_empty(of(a), event_threshold::never()));
  for (unsigned i = 0; i < 2 * gpumem::detail::stream_epochs::frees_per_batch; ++i)
    EXPECT_FALSE(cache.event_due(of(a), 256, event_threshold::never()));
  for (unsigned i = 1; i < gpumem::detail::stream_epochs::frees_per_batch; ++i)
    EXPECT_FALSE(cache.event_due(of(a), 256, event_threshold{SIZE_MAX - 1}));
  EXPECT_TRUE(cache.event_due(of(a), 256, event_threshold{SIZE_MAX - 1}));
  EXPECT_FALSE(of(a).event_request().raised());
  EXPECT_TRUE(cache.event_due(of(a), 1 << 20, event_threshold{1 << 20}));
  EXPECT_TRUE(of(a).event_request().raised());
}

} // namespace
