// The parts of a request, without a resource.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

import gpumem;

namespace {

using gpumem::expected;
using gpumem::failure;
using gpumem::outcome;
using gpumem::unexpected;
using gpumem::extend::request_part;
using gpumem::extend::stream_key;

class request : public gpumem::extend::request_parts {
public:
  explicit request(std::size_t bytes, std::span<request_part> more = {})
      : request_parts{stream_key::host(), bytes, 8, more} {}
  using request_parts::ask_for_turn;
};

std::vector<request_part> parts_of(std::vector<std::size_t> const& bytes) {
  std::vector<request_part> parts;
  for (auto const each : bytes) parts.push_back({stream_key::host(), each, 8});
  return parts;
}

TEST(request_parts, sum_the_bytes) {
  auto more = parts_of({30, 5});
  request const all{100, more};
  EXPECT_EQ(all.bytes(), 135u);
  EXPECT_EQ(all.parts(), 3u);
  EXPECT_TRUE(all.has_parts());
  EXPECT_EQ(all.bytes_by([](request_part const& each) { return (each.bytes + 15) / 16 * 16; }), 112u + 32 + 16);
}

TEST(request_parts, sum_does_not_overflow) {
  auto more = parts_of({PTRDIFF_MAX, PTRDIFF_MAX});
  request const all{1, more};
  EXPECT_EQ(all.bytes(), std::size_t{PTRDIFF_MAX});
  EXPECT_EQ(all.bytes_by([](request_part const& each) { return each.bytes; }), std::size_t{PTRDIFF_MAX});
}

TEST(request_parts, request_for_a_turn_keeps_its_sum) {
  request all{100};
  EXPECT_FALSE(all.asks_for_turn());
  all.ask_for_turn();
  EXPECT_TRUE(all.asks_for_turn());
  EXPECT_EQ(all.bytes(), 100u);
  EXPECT_EQ(all.part(0).bytes, 0u);
}

TEST(request_parts, are_allocated_all_or_none) {
  auto more = parts_of({2, 3});
  request all{1, more};
  char memory[3];
  std::vector<std::size_t> freed;
  std::size_t refused = 3;
  auto const allocate = [&](request_part const& one) -> expected<void*, failure> {
    if (one.bytes == refused) return unexpected<failure>{failure{outcome::exhausted}};
    return &memory[one.bytes - 1];
  };
  auto const deallocate = [&](request_part const& one) { freed.push_back(one.bytes); };
  auto const none = all.allocate_parts(allocate, deallocate);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().requested, 6u);
  EXPECT_EQ(freed, (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(all.part(1).pointer, nullptr);
  refused = 0;
  auto const got = all.allocate_parts(allocate, deallocate);
  ASSERT_TRUE(got);
  EXPECT_EQ(*got, &memory[0]);
  EXPECT_EQ(all.part(2).pointer, &memory[2]);
  EXPECT_EQ(freed.size(), 2u);
}

} // namespace
