// The free ranges of a shard alone: on which free list each is, and with which neighbours it coalesces.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::block_metadata;
using gpumem::detail::chunk;
using gpumem::detail::free_range_set;

namespace {

constexpr auto same_streams = free_range_set::coalescing::same_streams;
constexpr std::size_t part = 1024;

// A chunk of four blocks of equal size, none of which is free.
class free_range_set_test : public gpumem_test::simulated_test {
protected:
  free_range_set_test() {
    records.reserve(row.size());
    ranges.lists().reserve(2);
    for (auto& each : row) {
      auto& made = records.allocate();
      made.base = parent.end();
      made.bytes = part;
      made.parent = &parent;
      made.lower = made.upper = nullptr;
      if (parent.last) {
        parent.link_above(made, *parent.last);
      } else {
        parent.first = parent.last = &made;
      }
      parent.bytes += part;
      each = &made;
    }
  }
  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  block& free(std::size_t i) { return ranges.coalesce(*row[i], same_streams); }
  std::vector<std::size_t> sizes() const {
    std::vector<std::size_t> all;
    parent.visit([&](block const& each) { all.push_back(each.bytes); });
    return all;
  }

  gpumem::stream a{gpumem::device::current()}, b{gpumem::device::current()};
  block_metadata records;
  chunk parent{.base = 0x10000};
  std::array<block*, 4> row{};
  free_range_set ranges{records};
};

TEST_F(free_range_set_test, extracted_range_is_on_no_list) {
  row[1]->uses.add({&of(a), 1});
  ranges.insert(*row[1]);
  EXPECT_TRUE(row[1]->is_free());
  EXPECT_EQ(row[1]->list, ranges.lists().find(of(a)));
  EXPECT_EQ(ranges.lists().largest(), part);
  ranges.extract(*row[1]);
  EXPECT_TRUE(row[1]->is_live());
  EXPECT_EQ(ranges.lists().largest(), 0u);
}

TEST_F(free_range_set_test, freed_block_joins_both_neighbours) {
  free(0);
  free(2);
  EXPECT_EQ(sizes(), (std::vector{part, part, part, part}));
  auto& joined = free(1);
  EXPECT_EQ(sizes(), (std::vector{3 * part, part}));
  EXPECT_EQ(joined.base, parent.base);
  EXPECT_EQ(ranges.coalesces(), 2u);
  EXPECT_EQ(&free(3), parent.first);
  EXPECT_EQ(ranges.lists().largest(), 4 * part);
}

TEST_F(free_range_set_test, neighbours_of_other_streams_are_a_pair_until_they_are_joined) {
  row[0]->uses.add({&of(a), 1});
  row[1]->uses.add({&of(b), 1});
  free(0);
  free(1);
  EXPECT_EQ(ranges.pairs().first(), row[0]);
  ranges.coalesce_all([](block const&) { return true; });
  EXPECT_EQ(sizes(), (std::vector{2 * part, part, part}));
  EXPECT_EQ(parent.first->list, &ranges.lists().multi_stream());
  EXPECT_EQ(ranges.pairs().first(), nullptr);
}

TEST_F(free_range_set_test, complete_range_joins_ready_neighbours) {
  row[1]->uses.add({&of(a), 1});
  free(0);
  free(1);
  free(2);
  EXPECT_EQ(ranges.coalesces(), 0u);
  auto& joined = ranges.mark_complete(*row[1]);
  EXPECT_EQ(joined.bytes, 3 * part);
  EXPECT_EQ(joined.list, &ranges.lists().ready());
  EXPECT_EQ(ranges.refused_coalesces(), 0u);
}

} // namespace
