// The list of a chunk's blocks: linked to their neighbours, visited and searched by address.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::block_state;
using gpumem::detail::chunk;

namespace {

constexpr std::uintptr_t base = 0x10000;
void const* at(std::uintptr_t offset) { return reinterpret_cast<void const*>(base + offset); }

// A chunk of four blocks of 1, 2, 3 and 4 granules.
class chunk_test : public testing::Test {
protected:
  chunk_test() {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].base = base + 256 * (i * (i + 1) / 2);
      blocks[i].bytes = 256 * (i + 1);
    }
    blocks[2].parent = &parent;
    parent.first = parent.last = &blocks[2];
    parent.link_above(blocks[3], blocks[2]);
    parent.link_below(blocks[0], blocks[2]);
    parent.link_below(blocks[1], blocks[2]);
  }
  std::vector<block*> visited() const {
    std::vector<block*> all;
    parent.visit([&](block& each) { all.push_back(&each); });
    return all;
  }

  std::array<block, 4> blocks;
  chunk parent{.base = base, .bytes = 2560};
};

TEST_F(chunk_test, blocks_are_visited_by_address) {
  EXPECT_EQ(visited(), (std::vector{&blocks[0], &blocks[1], &blocks[2], &blocks[3]}));
  EXPECT_EQ(parent.first, &blocks[0]);
  EXPECT_EQ(parent.last, &blocks[3]);
  block const* lower = nullptr;
  for (auto const* const each : visited()) {
    EXPECT_EQ(each->parent, &parent);
    EXPECT_EQ(each->lower, lower);
    lower = each;
  }
}

TEST_F(chunk_test, neighbours_of_an_unlinked_block_are_neighbours) {
  EXPECT_EQ(&parent.unlink(blocks[1]), &blocks[1]);
  EXPECT_EQ(visited(), (std::vector{&blocks[0], &blocks[2], &blocks[3]}));
  EXPECT_EQ(blocks[2].lower, &blocks[0]);
  parent.unlink(blocks[0]);
  parent.unlink(blocks[3]);
  EXPECT_EQ(parent.first, &blocks[2]);
  EXPECT_EQ(parent.last, &blocks[2]);
  EXPECT_EQ(blocks[2].lower, nullptr);
  EXPECT_EQ(blocks[2].upper, nullptr);
  parent.unlink(blocks[2]);
  EXPECT_EQ(parent.first, nullptr);
  EXPECT_EQ(parent.last, nullptr);
}

TEST_F(chunk_test, address_is_found_in_its_block) {
  EXPECT_EQ(parent.find_containing(at(0)), &blocks[0]);
  EXPECT_EQ(parent.find_containing(at(767)), &blocks[1]);
  EXPECT_EQ(parent.find_containing(at(768)), &blocks[2]);
  EXPECT_EQ(parent.find_containing(at(2560)), nullptr);
}

std::size_t depth_of(block const* node) {
  return node ? 1 + std::max(depth_of(node->tree_children[0]), depth_of(node->tree_children[1])) : 0;
}

// Blocks are linked at one end, as a buffer grows, or between others, as pages go back out of its middle.
TEST(chunk_tree, any_block_is_found_in_few_steps) {
  constexpr std::size_t count = 20000;
  for (bool const at_end : {true, false}) {
    std::mt19937_64 random{7};
    std::vector<block> records(count);
    chunk parent{.base = base, .bytes = 256 * count};
    records[0].base = base;
    records[0].bytes = parent.bytes;
    parent.first = parent.last = &records[0];
    parent.begin_tree();
    std::size_t used = 1;
    for (std::size_t i = 1; i < count; ++i) {
      auto& whole = at_end ? *parent.last : *parent.find_containing(at(256 * (random() % count)));
      if (whole.bytes == 256) continue;
      auto& upper = records[used++];
      upper.bytes = at_end ? whole.bytes - 256 : 256 * (1 + random() % (whole.bytes / 256 - 1));
      whole.bytes -= upper.bytes;
      upper.base = whole.end();
      parent.link_above(upper, whole);
    }
    ASSERT_GT(used, count / 4);
    EXPECT_LE(depth_of(parent.root), 100u) << "a chunk of " << used << " blocks";
    for (auto* each = parent.last; each->lower; each = each->lower) { // every third block joins the one below
      EXPECT_EQ(parent.find_containing(each->pointer()), each);
      EXPECT_EQ(parent.find_containing(at(each->end() - 1 - base)), each);
      if (random() % 3 != 0) continue;
      each->lower->bytes += each->bytes;
      parent.unlink(*each);
    }
    EXPECT_EQ(parent.find_containing(at(parent.bytes)), nullptr);
    parent.visit([&](block const& each) { EXPECT_EQ(parent.find_containing(each.pointer()), &each); });
    EXPECT_LE(depth_of(parent.root), 100u);
  }
}

TEST_F(chunk_test, largest_run_is_of_adjacent_free_blocks) {
  EXPECT_EQ(parent.largest_run(), 2560u);
  blocks[2].set_state(block_state::allocated);
  EXPECT_EQ(parent.largest_run(), 1024u);
  blocks[3].set_state(block_state::hole);
  EXPECT_EQ(parent.largest_run(), 768u);
}

} // namespace
