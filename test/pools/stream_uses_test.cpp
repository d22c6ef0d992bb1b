// The stream uses of a range: coalescing keeps the newest epoch of each stream, for at most four streams.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

import gpumem;

using gpumem::detail::stream_use;
using gpumem::detail::stream_uses;

namespace {

class stream_uses_test : public gpumem_test::simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device}, c{device}, d{device}, e{device};
  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
};

TEST_F(stream_uses_test, join_keeps_the_newest_epoch_of_each_stream) {
  stream_uses left{stream_use{&of(a), 7}}, right{stream_use{&of(a), 9}};
  left.add({&of(b), 3});
  right.add({&of(b), 2});
  ASSERT_TRUE(left.join(right));
  EXPECT_EQ(left.size(), 2u);
  EXPECT_EQ(left.find(of(a))->newest, 9u);
  EXPECT_EQ(left.find(of(b))->newest, 3u);
}

TEST_F(stream_uses_test, fifth_stream_is_refused_and_nothing_changes) {
  stream_uses uses{stream_use{&of(a), 1}};
  EXPECT_TRUE(uses.add({&of(b), 1}) && uses.add({&of(c), 1}) && uses.add({&of(d), 1}));
  EXPECT_FALSE(uses.add({&of(e), 1}));
  stream_uses other{stream_use{&of(a), 5}};
  other.add({&of(e), 5});
  EXPECT_FALSE(uses.join(other));
  EXPECT_EQ(uses.size(), 4u);
  EXPECT_EQ(uses.find(of(a))->newest, 1u);
}

TEST_F(stream_uses_test, completed_uses_are_pruned_and_others_stay) {
  auto const seen = of(a).record_later(a.get());
  gpumem::simulator::run_until_idle();
  of(a).poll();
  stream_uses uses{stream_use{&of(a), seen}};
  uses.add({&of(b), of(b).current_epoch()});
  EXPECT_FALSE(uses.completed());
  uses.prune();
  EXPECT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses.find(of(a)), nullptr);
}

TEST_F(stream_uses_test, uses_of_the_same_streams_are_alike_whatever_their_epochs) {
  stream_uses left{stream_use{&of(a), 1}}, right{stream_use{&of(b), 2}};
  EXPECT_FALSE(left.same_streams(right));
  left.add({&of(b), 9});
  EXPECT_FALSE(left.same_streams(right));
  right.add({&of(a), 3});
  EXPECT_TRUE(left.same_streams(right));
}

} // namespace
