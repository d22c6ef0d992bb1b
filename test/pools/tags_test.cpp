// The order of a range: joins keep the newest epoch of each stream, four streams at most.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

import gpumem;

using gpumem::detail::tag;
using gpumem::detail::tag_set;

namespace {

class tags : public gpumem_test::simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device}, c{device}, d{device}, e{device};
  static auto& of(gpumem::stream const& s) { return s.key().order(); }
};

TEST_F(tags, a_join_keeps_the_newest_epoch_of_each_stream_and_its_precision) {
  tag_set left{tag{&of(a), 7, false}}, right{tag{&of(a), 9, true}};
  left.add({&of(b), 3, true});
  right.add({&of(b), 2, false});
  ASSERT_TRUE(left.join(right));
  EXPECT_EQ(left.size(), 2u);
  EXPECT_EQ(left.find(of(a))->newest, 9u);
  EXPECT_TRUE(left.find(of(a))->precise);
  EXPECT_EQ(left.find(of(b))->newest, 3u);
  EXPECT_TRUE(left.find(of(b))->precise);
}

TEST_F(tags, a_newer_imprecise_use_is_imprecise) {
  tag_set uses{tag{&of(a), 7, true}};
  uses.add({&of(a), 8, false});
  EXPECT_FALSE(uses.find(of(a))->precise);
}

TEST_F(tags, a_fifth_stream_is_refused_and_nothing_changes) {
  tag_set uses{tag{&of(a), 1, false}};
  EXPECT_TRUE(uses.add({&of(b), 1, false}) && uses.add({&of(c), 1, false}) && uses.add({&of(d), 1, false}));
  EXPECT_FALSE(uses.add({&of(e), 1, false}));
  tag_set other{tag{&of(a), 5, false}};
  other.add({&of(e), 5, false});
  EXPECT_FALSE(uses.join(other));
  EXPECT_EQ(uses.size(), 4u);
  EXPECT_EQ(uses.find(of(a))->newest, 1u);
}

TEST_F(tags, completed_uses_are_pruned_and_others_stay) {
  auto const seen = of(a).record_late(a.get());
  gpumem::simulator::run_until_idle();
  of(a).poll();
  tag_set uses{tag{&of(a), seen, false}};
  uses.add({&of(b), of(b).now(), false});
  EXPECT_FALSE(uses.completed());
  uses.prune();
  EXPECT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses.find(of(a)), nullptr);
}

TEST_F(tags, sets_of_the_same_streams_are_alike_whatever_the_epochs) {
  tag_set left{tag{&of(a), 1, false}}, right{tag{&of(b), 2, false}};
  EXPECT_FALSE(left.same_streams(right));
  left.add({&of(b), 9, true});
  EXPECT_FALSE(left.same_streams(right));
  right.add({&of(a), 3, false});
  EXPECT_TRUE(left.same_streams(right));
}

} // namespace
