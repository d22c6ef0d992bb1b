// Whether a pool serves requests, queues them or refuses them, and the count of changes that may let them go on.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

import gpumem;

namespace {

using gpumem::detail::admission;

TEST(admission_test, pool_queues_while_requests_wait) {
  admission requests;
  EXPECT_TRUE(requests.is_open());
  EXPECT_FALSE(requests.has_waiting());
  requests.set_waiting(true);
  EXPECT_TRUE(requests.has_waiting());
  EXPECT_FALSE(requests.is_open());
  EXPECT_FALSE(requests.is_closed());
  requests.set_waiting(false);
  EXPECT_TRUE(requests.is_open());
}

TEST(admission_test, closed_pool_neither_admits_nor_queues) {
  admission requests;
  requests.set_waiting(true);
  requests.set_closed();
  EXPECT_TRUE(requests.is_closed());
  EXPECT_FALSE(requests.is_open());
  EXPECT_FALSE(requests.has_waiting());
}

TEST(admission_test, changes_that_a_call_takes_back_are_returned) {
  admission requests;
  requests.count_change();
  auto const before = requests.changes();
  auto const taken_back = requests.without_counting([&] {
    for (int i = 0; i < 3; ++i) requests.count_change();
    EXPECT_EQ(requests.changes(), before + 3) << "the call itself sees them";
  });
  EXPECT_EQ(taken_back, 3u);
  EXPECT_EQ(requests.changes(), before);
  requests.count_change();
  EXPECT_EQ(requests.changes(), before + 1);
}

} // namespace
