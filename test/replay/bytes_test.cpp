// Sizes as people write them.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>

import replay;

namespace {

TEST(bytes, are_read_with_and_without_unit) {
  EXPECT_EQ(replay::parse_bytes("4096"), 4096U);
  EXPECT_EQ(replay::parse_bytes("4096B"), 4096U);
  EXPECT_EQ(replay::parse_bytes("1GiB"), 1U << 30);
  EXPECT_EQ(replay::parse_bytes("1.5MiB"), 3U << 19);
  EXPECT_EQ(replay::parse_bytes("2 KiB"), 2048U);
  EXPECT_EQ(replay::parse_bytes("3GB"), 3'000'000'000U);
  EXPECT_EQ(replay::parse_bytes("0.1KiB"), 102U); // the nearest whole number
  EXPECT_EQ(replay::parse_bytes("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
}

TEST(bytes, refuse_what_is_no_size) {
  for (char const* text : {"", "GiB", "-1", "1.5", "1.5B", "1 2", "1XiB", "1GiBs", "nan", "inf", "0x10", "1e3",
                           "18446744073709551616", "16777216TiB", "1e400GiB", "99999999.5TiB"}) {
    EXPECT_EQ(replay::parse_bytes(text), std::nullopt) << text;
  }
}

TEST(bytes, are_written_in_the_largest_unit_that_they_reach) {
  EXPECT_EQ(replay::format_bytes(0), "0 B");
  EXPECT_EQ(replay::format_bytes(1023), "1023 B");
  EXPECT_EQ(replay::format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(replay::format_bytes((1U << 20) - 1), "1.00 MiB");
  EXPECT_EQ(replay::format_bytes(3U << 19), "1.50 MiB");
  EXPECT_EQ(replay::format_bytes(8'074'952'704), "7.52 GiB");
  EXPECT_EQ(replay::format_bytes(std::numeric_limits<std::uint64_t>::max()), "16.00 EiB");
}

TEST(bytes, that_were_written_can_be_read) {
  for (std::uint64_t bytes = 1; bytes != 0; bytes <<= 1) {
    EXPECT_EQ(bytes >= 1ULL << 50 ? bytes : replay::parse_bytes(replay::format_bytes(bytes)), bytes);
  }
}

} // namespace
