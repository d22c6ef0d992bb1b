// The store of timelines: which timeline of a dead stream another stream gets.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <cstdint>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::detail::stream_kind;
using gpumem::detail::timeline_store;
namespace simulator = gpumem::simulator;

class timeline_store_test : public test::stepped_device {
protected:
  gpumem::extend::stream_timeline& take(std::uint64_t id, gpumem::device where) {
    return store.take(stream_kind::foreign, id, where.ordinal(), where.context(), a.get());
  }
  gpumem::device first{0}, second{1};
  gpumem::stream a{first};
  timeline_store store;
};

TEST_F(timeline_store_test, new_timelines_have_their_own_index) {
  auto& one = take(1, first);
  auto& other = take(2, first);
  EXPECT_NE(&one, &other);
  EXPECT_NE(one.index(), other.index());
  EXPECT_EQ(one.id(), 1u);
}

TEST_F(timeline_store_test, timeline_of_the_newest_dead_stream_serves_the_next_stream) {
  auto& one = take(1, first);
  auto& other = take(2, first);
  store.retire(one);
  store.retire(other);
  EXPECT_EQ(&take(3, first), &other);
  EXPECT_EQ(other.id(), 3u);
  EXPECT_EQ(&take(4, first), &one);
}

TEST_F(timeline_store_test, stream_of_another_context_gets_another_timeline) {
  auto& one = take(1, first);
  store.retire(one);
  EXPECT_NE(&take(2, second), &one);
  EXPECT_EQ(&take(3, first), &one);
}

TEST_F(timeline_store_test, timeline_with_open_work_is_not_reused) {
  auto& one = take(1, first);
  one.record_last_event(a.get(), false);
  store.retire(one);
  EXPECT_NE(&take(2, first), &one);
  simulator::run_until_idle();
  EXPECT_EQ(&take(3, first), &one);
}

TEST_F(timeline_store_test, timeline_with_an_uncovered_free_is_never_reused) {
  auto& one = take(1, first);
  one.epochs().count_uncovered(1);
  store.retire(one);
  EXPECT_NE(&take(2, first), &one);
}

} // namespace
