// range_set against a set of bytes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

import report;

namespace {

TEST(range_set, is_the_set_of_its_bytes) {
  std::mt19937_64 random{1};
  for (int program = 0; program < 50; ++program) {
    report::range_set<true> subject;
    std::vector<bool> bytes(64);
    for (int step = 0; step < 100; ++step) {
      std::size_t const begin = random() % 64, end = begin + random() % (65 - begin);
      auto const first = bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                 last = bytes.begin() + static_cast<std::ptrdiff_t>(end);
      if (random() % 2 == 0) {
        subject.add(begin, end);
        std::fill(first, last, true);
      } else if (begin < end) {
        EXPECT_EQ(subject.remove(begin, end), std::find(first, last, false) == last);
        std::fill(first, last, false);
      }
      std::map<std::uint64_t, std::uint64_t> expected;
      std::uint64_t largest = 0;
      for (std::size_t i = 0; i < 64; ++i) {
        if (!bytes[i]) continue;
        std::size_t run = i;
        while (run < 64 && bytes[run]) ++run;
        expected[i] = run;
        largest = std::max<std::uint64_t>(largest, run - i);
        i = run;
      }
      ASSERT_EQ(subject.all(), expected);
      EXPECT_EQ(subject.bytes(), static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), true)));
      EXPECT_EQ(subject.largest(), largest);
    }
  }
}

TEST(range_set, ranges_do_not_join_across_a_wall) {
  report::range_set<true> subject;
  for (int i = 0; i < 2; ++i) subject.add_wall(8);
  subject.add(0, 8);
  subject.add(8, 16);
  subject.add(4, 8);
  EXPECT_EQ(subject.all(), (std::map<std::uint64_t, std::uint64_t>{{0, 8}, {8, 16}}));
  EXPECT_EQ(subject.largest(), 8u);
  subject.remove_wall(8);
  subject.add(7, 8);
  EXPECT_EQ(subject.all().size(), 2u) << "two walls were added";
  subject.remove_wall(8);
  subject.remove_wall(8); // there is none
  subject.add(7, 8);
  EXPECT_EQ(subject.largest(), 16u);
}

} // namespace
