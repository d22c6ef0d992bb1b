// The table of mapped pages, without a driver.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <optional>

#include <gtest/gtest.h>

import gpumem;

namespace {

using gpumem::detail::page_table;
using gpumem::detail::plan_pages;
using gpumem::extend::page_extent;

constexpr std::size_t space = 100;

class page_table_test : public testing::Test {
protected:
  void add(page_extent run, std::size_t page) {
    auto made = plan_pages(run, page);
    table.add(made);
  }
  page_table table;
};

TEST_F(page_table_test, plan_divides_a_run_into_pages) {
  auto const made = plan_pages({10, 25}, 10);
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made.begin()->first, 10u);
  EXPECT_EQ(made.rbegin()->first, 30u);
  EXPECT_EQ(made.rbegin()->second.of->bytes, 5u);
}

TEST_F(page_table_test, finds_the_page_that_holds_an_offset) {
  add({10, 20}, 10);
  EXPECT_EQ(table.find_containing(9), table.pages().end());
  EXPECT_EQ(table.find_containing(10)->first, 10u);
  EXPECT_EQ(table.find_containing(29)->first, 20u);
  EXPECT_EQ(table.find_containing(30), table.pages().end());
  EXPECT_EQ(table.find_containing(~std::size_t{0}), table.pages().end());
}

TEST_F(page_table_test, finds_the_pages_that_hold_a_run) {
  add({10, 20}, 10);
  add({40, 10}, 10);
  EXPECT_EQ(table.pages_holding({15, 1}).begin()->first, 10u);
  auto const both = table.pages_holding({15, 10});
  EXPECT_EQ(both.begin()->first, 10u);
  EXPECT_EQ(both.end()->first, 40u);
  EXPECT_TRUE(table.pages_holding({15, 0}).empty());
  EXPECT_TRUE(table.pages_holding({25, 20}).empty()) << "over a hole";
  EXPECT_TRUE(table.pages_holding({45, ~std::size_t{0}}).empty());
}

TEST_F(page_table_test, run_of_whole_pages_begins_and_ends_with_a_page) {
  add({10, 20}, 10);
  EXPECT_FALSE(table.pages_of({10, 20}).empty());
  EXPECT_TRUE(table.pages_of({10, 15}).empty());
  EXPECT_TRUE(table.pages_of({15, 5}).empty());
  EXPECT_TRUE(table.pages_of({20, 20}).empty());
}

TEST_F(page_table_test, extent_is_the_smallest_hole_and_otherwise_the_end) {
  EXPECT_EQ(table.find_extent(10, space), 0u);
  add({20, 10}, 10); // a hole of 20 before it
  add({40, 10}, 10); // a hole of 10
  EXPECT_EQ(table.find_extent(10, space), 30u);
  EXPECT_EQ(table.find_extent(15, space), 0u);
  EXPECT_EQ(table.find_extent(25, space), 50u);
  EXPECT_EQ(table.find_extent(60, space), std::nullopt);
}

TEST_F(page_table_test, taken_pages_leave_a_hole) {
  add({0, 30}, 10);
  auto const taken = table.take(table.pages_of({10, 10}));
  EXPECT_EQ(taken.size(), 1u);
  EXPECT_TRUE(table.is_unmapped({10, 10}));
  EXPECT_FALSE(table.is_unmapped({10, 11}));
  EXPECT_FALSE(table.is_unmapped({9, 2}));
  EXPECT_EQ(table.mapped_end(), 30u);
}

TEST_F(page_table_test, page_that_stays_mapped_occupies_its_addresses) {
  auto refused = plan_pages({50, 20}, 10);
  refused.begin()->second.mapped = true; // the second page was unmapped, but its memory is not destroyed
  table.keep_refused(refused);
  EXPECT_TRUE(refused.empty());
  EXPECT_TRUE(table.pages().empty());
  EXPECT_FALSE(table.is_unmapped({50, 10}));
  EXPECT_TRUE(table.is_unmapped({60, 10}));
  EXPECT_EQ(table.mapped_end(), 60u);
  EXPECT_EQ(table.find_extent(10, space), 60u);
}

} // namespace
