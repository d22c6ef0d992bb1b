// The list of a shard's holes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::block_state;
using gpumem::detail::hole_list;

namespace {

class hole_list_test : public testing::Test {
protected:
  hole_list_test() {
    for (std::size_t i = 0; i < made.size(); ++i) {
      made[i].base = 0x10000 * (i + 1);
      made[i].bytes = 512;
      holes.insert(made[i]);
    }
  }
  std::set<block const*> visited() const {
    std::set<block const*> all;
    holes.visit([&](block const& each) { all.insert(&each); });
    return all;
  }

  std::array<block, 3> made;
  hole_list holes;
};

TEST_F(hole_list_test, inserted_blocks_are_holes_and_are_visited) {
  for (auto const& each : made) EXPECT_EQ(each.state(), block_state::hole);
  EXPECT_EQ(visited(), (std::set<block const*>{&made[0], &made[1], &made[2]}));
}

TEST_F(hole_list_test, hole_is_found_by_each_of_its_addresses) {
  for (auto& each : made) {
    EXPECT_EQ(&holes.at(each.base), &each);
    EXPECT_EQ(&holes.at(each.end() - 1), &each);
  }
}

TEST_F(hole_list_test, removed_holes_are_visited_no_more) {
  holes.remove(made[1]); // neither the first nor the last
  EXPECT_EQ(visited(), (std::set<block const*>{&made[0], &made[2]}));
  holes.remove(made[2]); // the newest
  EXPECT_EQ(visited(), std::set<block const*>{&made[0]});
  holes.insert(made[1]);
  holes.remove(made[0]); // the oldest
  EXPECT_EQ(visited(), std::set<block const*>{&made[1]});
  holes.remove(made[1]);
  EXPECT_EQ(visited(), std::set<block const*>{});
}

} // namespace
