// The blocks of a hardened pool by themselves: which pointers may be freed, and how wrong frees are explained.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/statistics.hpp>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

import gpumem;

using gpumem::misuse;
using gpumem::detail::guarded_block;
using gpumem::detail::guarded_blocks;

namespace {

constexpr std::uint64_t stream = 7;

class guarded_blocks_test : public testing::Test {
protected:
  // Adds a block of 1000 bytes between guards of 256 bytes.
  guarded_block& add(std::size_t at) {
    auto made = std::make_unique<guarded_block>();
    made->user = memory.data() + at;
    made->bytes = 1000;
    made->front = 256;
    made->allocated = 256 + 1024 + 256;
    auto& added = *made;
    blocks.add(std::move(made));
    return added;
  }
  guarded_block& add_live(std::size_t at) {
    auto& added = add(at);
    blocks.make_live(added);
    return added;
  }
  misuse::kind explained(void const* pointer, std::optional<std::size_t> bytes) {
    return blocks.explain(pointer, bytes).what;
  }
  gpumem::statistics amended() const {
    gpumem::statistics seen;
    blocks.amend(seen);
    return seen;
  }

  std::array<char, 8192> memory{};
  guarded_blocks blocks{8};
};

TEST_F(guarded_blocks_test, address_is_found_in_the_block_or_in_its_guards) {
  auto& low = add_live(256);
  auto& high = add_live(2048);
  EXPECT_EQ(blocks.find_containing(low.user), &low);
  EXPECT_EQ(blocks.find_containing(high.user - 256), &high) << "its lower guard";
  EXPECT_EQ(blocks.find_containing(low.user + 1279), &low) << "its upper guard";
  EXPECT_EQ(blocks.find_containing(low.user + 1280), nullptr);
  EXPECT_EQ(blocks.find_containing(memory.data() + 6000), nullptr);
  EXPECT_EQ(blocks.find_live(high.user), &high);
  EXPECT_EQ(blocks.find_live(high.user + 1), nullptr);
}

TEST_F(guarded_blocks_test, live_block_is_freed_once_and_with_its_size) {
  auto& one = add(256);
  EXPECT_EQ(blocks.end_life(one.user, 1000, stream), nullptr) << "its user does not have it yet";
  blocks.make_live(one);
  EXPECT_EQ(blocks.end_life(one.user, 1001, stream), nullptr);
  EXPECT_EQ(blocks.all_live().count, 1u);
  EXPECT_EQ(blocks.end_life(one.user, std::nullopt, stream), &one);
  EXPECT_EQ(one.freed_on, stream);
  EXPECT_EQ(blocks.end_life(one.user, 1000, stream), nullptr);
  EXPECT_EQ(blocks.all_live().count, 0u);
}

TEST_F(guarded_blocks_test, wrong_frees_are_explained) {
  auto& one = add_live(256);
  EXPECT_EQ(explained(one.user, 1001), misuse::kind::wrong_size);
  EXPECT_EQ(explained(one.user + 8, std::nullopt), misuse::kind::foreign_pointer);
  blocks.end_life(one.user, 1000, stream);
  EXPECT_EQ(explained(one.user, 1000), misuse::kind::double_free) << "in quarantine";
  auto const* const user = one.user;
  blocks.remove(one);
  EXPECT_EQ(explained(user, 1000), misuse::kind::double_free) << "by the history";
  EXPECT_EQ(blocks.explain(user, 1000).expected, 1000u);
  EXPECT_EQ(explained(user + 8, 1000), misuse::kind::foreign_pointer);
}

TEST_F(guarded_blocks_test, counts_are_those_of_the_users) {
  add_live(256);
  auto& freed = add_live(2048);
  blocks.end_life(freed.user, 1000, stream);
  EXPECT_EQ(blocks.frees(), 1u);
  auto const seen = amended();
  EXPECT_EQ(seen.live, 1000u);
  EXPECT_EQ(seen.peak_live, 2000u);
  EXPECT_EQ(seen.allocations, 2u);
  EXPECT_EQ(seen.frees, 1u);
  blocks.reset_peak();
  EXPECT_EQ(amended().peak_live, 1000u);
  EXPECT_EQ(blocks.history().all(freed.user).size(), 2u);
}

} // namespace
