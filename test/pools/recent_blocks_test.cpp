// The last large blocks of a thread: found by stream and size, gone by turns, left out where they are not asked for.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::tag;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

class recent_blocks : public gpumem_test::simulated_test {
protected:
  static auto& of(gpumem::stream const& s) { return s.key().order(); }
  block& freed(std::size_t bytes, gpumem::stream const& on) {
    auto& one = made[count++];
    one.bytes = bytes;
    one.tags.assign(tag{&of(on), 1});
    return one;
  }
  void fill() {
    while (!recent.full()) recent.keep(freed((count + 1) * MiB, a));
  }
  // How many went, 1000 at most.
  int evict_while_worthwhile() {
    int evicted = 0;
    for (; recent.worthwhile() && evicted < 1000; ++evicted) {
      count = 0;
      recent.keep(freed(MiB, a));
      EXPECT_NE(recent.evict(), nullptr);
    }
    return evicted;
  }
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  std::array<block, 64> made;
  std::size_t count = 0;
  gpumem::detail::recent_blocks recent;
};

TEST_F(recent_blocks, are_found_by_stream_and_exact_size_and_gone_then) {
  auto& first = freed(MiB, a);
  auto& second = freed(MiB, b);
  auto& third = freed(2 * MiB, a);
  for (auto* const each : {&first, &second, &third}) recent.keep(*each);
  EXPECT_EQ(recent.take(of(a), MiB + 256), nullptr);
  EXPECT_EQ(recent.take(of(b), 2 * MiB), nullptr);
  EXPECT_EQ(recent.take(of(b), MiB), &second);
  EXPECT_EQ(recent.take(of(b), MiB), nullptr) << "it is no longer kept";
  EXPECT_EQ(recent.take(of(a), 2 * MiB), &third);
  EXPECT_FALSE(recent.empty());
  EXPECT_EQ(recent.take(of(a), MiB), &first);
  EXPECT_TRUE(recent.empty());
}

// The marks by which they are looked for may be the same: here an address and a size make up for each other.
TEST_F(recent_blocks, are_told_apart_where_their_marks_are_the_same) {
  auto const apart = reinterpret_cast<std::uintptr_t>(&of(a)) - reinterpret_cast<std::uintptr_t>(&of(b));
  auto& first = freed(2 * MiB, a);
  auto& second = freed(2 * MiB + apart, b);
  recent.keep(first);
  EXPECT_EQ(recent.take(of(b), 2 * MiB + apart), nullptr);
  recent.keep(second);
  EXPECT_EQ(recent.take(of(b), 2 * MiB + apart), &second) << "behind the other";
  EXPECT_EQ(recent.take(of(a), 2 * MiB), &first);
}

TEST_F(recent_blocks, of_one_size_all_are_found) {
  for (int i = 0; i < 3; ++i) recent.keep(freed(MiB, a));
  for (int i = 0; i < 3; ++i) EXPECT_NE(recent.take(of(a), MiB), nullptr);
  EXPECT_EQ(recent.take(of(a), MiB), nullptr);
}

TEST_F(recent_blocks, go_by_turns) {
  fill();
  EXPECT_EQ(count, gpumem::detail::recent_blocks::most);
  EXPECT_EQ(recent.evict(), &made[0]);
  EXPECT_EQ(recent.take(of(a), 2 * MiB), &made[1]);
  fill(); // in both places
  EXPECT_EQ(recent.evict(), &made[count - 1]) << "where the second was";
  EXPECT_EQ(recent.evict(), &made[2]);
  for (std::size_t left = gpumem::detail::recent_blocks::most - 2; left > 0; --left) EXPECT_NE(recent.pop(), nullptr);
  EXPECT_TRUE(recent.empty());
  EXPECT_EQ(recent.pop(), nullptr);
  EXPECT_EQ(recent.evict(), nullptr);
}

TEST_F(recent_blocks, are_left_out_while_nobody_asks_for_them_and_tried_again) {
  ASSERT_TRUE(recent.worthwhile());
  auto const evicted = evict_while_worthwhile();
  EXPECT_GT(evicted, 16);
  EXPECT_LT(evicted, 1000);
  int left_out = 1;
  while (!recent.worthwhile()) ASSERT_LT(++left_out, 100'000);
  EXPECT_GT(left_out, 8 * evicted) << "seldom";

  recent.keep(freed(MiB, a));
  ASSERT_NE(recent.take(of(a), MiB), nullptr);
  EXPECT_LT(evict_while_worthwhile(), evicted) << "for a short time";
}

TEST_F(recent_blocks, stay_worthwhile_where_a_few_are_asked_for) {
  for (int i = 0; i < 1000; ++i) {
    count = 0;
    recent.keep(freed(MiB, a));
    (i % 5 == 0 ? recent.take(of(a), MiB) : recent.evict());
    ASSERT_TRUE(recent.worthwhile());
  }
}

TEST_F(recent_blocks, that_cannot_be_kept_are_useless_too) {
  for (int i = 0; recent.worthwhile(); ++i) {
    ASSERT_LT(i, 1000);
    ASSERT_EQ(recent.evict(), nullptr);
  }
}

TEST_F(recent_blocks, that_go_for_another_reason_say_nothing) {
  for (int i = 0; i < 1000; ++i) {
    count = 0;
    recent.keep(freed(MiB, a));
    ASSERT_NE(recent.pop(), nullptr);
  }
  EXPECT_TRUE(recent.worthwhile());
}

} // namespace
