// Looks for completion: when they are left out, and for how long.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>

import gpumem;

namespace {

class look_record : public testing::Test {
protected:
  // So many looks, each so many locked calls after the last.
  void look(int count, std::uint64_t apart = 10, gpumem::detail::look const& at = {.asked = 4, .early = 0}) {
    for (int i = 0; i < count; ++i) {
      now += apart;
      record.note(at, now);
    }
  }
  // How many calls from now on they are said to come often; as many go by.
  std::uint64_t pass_pause() {
    std::uint64_t lasted = 0;
    for (; record.often(now); ++now) ++lasted;
    return lasted;
  }

  gpumem::detail::look_record record;
  std::uint64_t now = 0;
};

TEST_F(look_record, come_often_after_some_in_succession) {
  look(7);
  EXPECT_FALSE(record.often(now));
  look(1);
  EXPECT_TRUE(record.often(now));
  EXPECT_EQ(pass_pause(), 1024u);
}

TEST_F(look_record, that_are_far_apart_or_ask_nobody_do_not_come_often) {
  look(100, 65);
  EXPECT_FALSE(record.often(now));
  look(100, 10, {.asked = 0, .early = 0});
  EXPECT_FALSE(record.often(now));
}

TEST_F(look_record, that_come_as_often_when_a_pause_is_over_begin_one_twice_as_long) {
  look(8);
  pass_pause();
  for (std::uint64_t longer = 2048; longer <= 65'536; longer *= 2) {
    look(1);
    EXPECT_FALSE(record.often(now)) << "one is none";
    look(1);
    EXPECT_EQ(pass_pause(), longer);
  }
  look(2);
  EXPECT_EQ(pass_pause(), 65'536u) << "which is the longest";
}

TEST_F(look_record, made_in_a_pause_all_the_same_make_neither_it_nor_the_next_longer) {
  look(8);
  look(5);
  EXPECT_EQ(pass_pause(), 1024u - 50);
  look(2);
  EXPECT_EQ(pass_pause(), 1024u);
  look(2);
  EXPECT_EQ(pass_pause(), 2048u);
  look(100);
  EXPECT_EQ(pass_pause(), 4096u - 980);
  look(2);
  EXPECT_EQ(pass_pause(), 1024u) << "the last has saved nothing";
}

TEST_F(look_record, that_have_become_rare_begin_anew) {
  look(8);
  pass_pause();
  look(2);
  EXPECT_EQ(pass_pause(), 2048u);
  look(4, 1000);
  look(7);
  EXPECT_FALSE(record.often(now));
  look(1);
  EXPECT_EQ(pass_pause(), 1024u);
}

TEST_F(look_record, that_come_long_after_a_pause_begin_anew) {
  for (int i = 0; i < 5; ++i) {
    look(2);
    pass_pause();
    now += 100'000;
  }
  look(8);
  EXPECT_FALSE(record.often(now));
  look(1);
  EXPECT_EQ(pass_pause(), 1024u);
  now += 65'537;
  look(2);
  EXPECT_FALSE(record.often(now));
}

TEST_F(look_record, are_made_again_when_a_request_was_refused) {
  look(8);
  pass_pause();
  look(2);
  record.note_refusal();
  EXPECT_FALSE(record.often(now));
  look(7);
  EXPECT_FALSE(record.often(now));
  look(1);
  EXPECT_EQ(pass_pause(), 1024u);
}

TEST_F(look_record, at_long_work_say_so_until_some_find_none) {
  look(2, 1000, {.asked = 4, .early = 3});
  EXPECT_FALSE(record.at_work());
  look(1, 1000, {.asked = 4, .early = 3});
  EXPECT_TRUE(record.at_work());
  look(1, 1000);
  EXPECT_FALSE(record.at_work());
}

} // namespace
