// The measured time that one page takes.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include <gtest/gtest.h>

#include <chrono>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::detail::page_price;
namespace tuning = gpumem::detail::tuning;

TEST(page_price_of, price_begins_as_the_constant) {
  page_price price;
  EXPECT_EQ(price.median(), tuning::page_cost);
  price.add(5s, 0);
  EXPECT_EQ(price.median(), tuning::page_cost) << "no page was made";
}

TEST(page_price_of, two_growths_outweigh_the_constant) {
  page_price price;
  for (int i = 0; i < 2; ++i) price.add(1'020us, 4);
  EXPECT_EQ(price.median(), 255us);
}

TEST(page_price_of, one_slow_growth_does_not_count) {
  page_price price;
  price.add(50ms, 1);
  EXPECT_EQ(price.median(), tuning::page_cost);
  price.add(30us, 1);
  EXPECT_EQ(price.median(), tuning::page_cost);
}

TEST(page_price_of, old_growths_are_forgotten) {
  page_price price;
  for (std::size_t i = 0; i < page_price::kept; ++i) price.add(100us, 1);
  for (std::size_t i = 0; i < page_price::kept / 2; ++i) price.add(10us, 1);
  EXPECT_EQ(price.median(), 100us);
  price.add(10us, 1);
  EXPECT_EQ(price.median(), 10us);
}

TEST(page_price_of, page_is_never_free) {
  page_price price;
  for (int i = 0; i < 2; ++i) price.add(0ns, 1);
  EXPECT_EQ(price.median(), page_price::least);
}

} // namespace
