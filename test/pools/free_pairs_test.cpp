// The list of free neighbours.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <set>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::block_state;
using gpumem::detail::free_pairs;

namespace {

// Four neighbours, none of which is free.
class free_pairs_test : public testing::Test {
protected:
  free_pairs_test() {
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i].set_state(block_state::allocated);
      if (i == 0) continue;
      row[i].lower = &row[i - 1];
      row[i - 1].upper = &row[i];
    }
  }
  void make_free(block& one) {
    one.set_state(block_state::free);
    pairs.add_with_upper(one);
    pairs.add_with_lower(one);
  }
  void allocate(block& one) {
    pairs.remove_with_upper(one);
    pairs.remove_with_lower(one);
    one.set_state(block_state::allocated);
  }
  // Returns the lower blocks of all pairs; fails if the list names one twice.
  std::set<block*> listed() const {
    std::set<block*> all;
    for (auto* each = pairs.first(); each; each = each->pair_next) EXPECT_TRUE(all.insert(each).second);
    return all;
  }

  std::array<block, 4> row;
  free_pairs pairs;
};

TEST_F(free_pairs_test, free_block_makes_a_pair_with_each_free_neighbour) {
  make_free(row[0]);
  EXPECT_EQ(listed(), std::set<block*>{}) << "its neighbour is not free";
  make_free(row[2]);
  EXPECT_EQ(listed(), std::set<block*>{});
  make_free(row[1]);
  EXPECT_EQ(listed(), (std::set{&row[0], &row[1]}));
  make_free(row[3]);
  EXPECT_EQ(listed(), (std::set{&row[0], &row[1], &row[2]}));
}

TEST_F(free_pairs_test, allocated_block_is_in_no_pair) {
  for (auto& each : row) make_free(each);
  allocate(row[1]);
  EXPECT_EQ(listed(), std::set{&row[2]});
  allocate(row[0]);
  EXPECT_EQ(listed(), std::set{&row[2]});
  allocate(row[3]);
  EXPECT_EQ(listed(), std::set<block*>{});
}

} // namespace
