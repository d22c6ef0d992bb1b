// The chunks of a graph memory by themselves.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <vector>

import gpumem;
#include "backend_fixture.hpp"

using gpumem::detail::chunk;
using gpumem::detail::graph_chunks;
using gpumem::detail::range_allocator;
using gpumem_test::recording_upstream;

namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, header = 256;

class graph_chunks_test : public gpumem_test::simulated_test {
protected:
  gpumem::stream on{gpumem::device::current()}; // gives the thread a context, in which the upstream allocates
  recording_upstream from;
  gpumem_test::test_upstream<recording_upstream> upstream{from};
};

TEST_F(graph_chunks_test, first_granule_is_not_part_of_a_chunk) {
  auto const drawn = graph_chunks::draw(upstream, KiB, 256);
  ASSERT_TRUE(drawn);
  auto const call = from.state().draws().back();
  EXPECT_TRUE(call.by_host);
  EXPECT_EQ(call.bytes, 2 * MiB) << "a chunk for small blocks";
  EXPECT_EQ(drawn->base, reinterpret_cast<std::uintptr_t>(call.pointer) + header);
  EXPECT_EQ(graph_chunks::bytes_from_upstream(*drawn), call.bytes);
  graph_chunks::give_back(upstream, *drawn);
  EXPECT_EQ(from.state().returns().back().pointer, call.pointer);
  EXPECT_EQ(from.state().returns().back().bytes, call.bytes);
}

TEST_F(graph_chunks_test, large_blocks_get_chunks_of_their_size) {
  auto const plain = graph_chunks::draw(upstream, 4 * MiB, 256);
  auto const aligned = graph_chunks::draw(upstream, 4 * MiB, 4 * KiB);
  ASSERT_TRUE(plain && aligned);
  EXPECT_EQ(plain->bytes, 4 * MiB);
  EXPECT_EQ(aligned->bytes, 4 * MiB + 4 * KiB) << "the block can be aligned wherever the chunk begins";
  for (auto const* const each : {&*plain, &*aligned}) graph_chunks::give_back(upstream, *each);
}

TEST_F(graph_chunks_test, full_upstream_gives_less_for_small_blocks) {
  from.state().capacity = MiB;
  auto const drawn = graph_chunks::draw(upstream, KiB, 256);
  ASSERT_TRUE(drawn);
  EXPECT_EQ(drawn->bytes, KiB);
  graph_chunks::give_back(upstream, *drawn);
  EXPECT_FALSE(graph_chunks::draw(upstream, 2 * MiB, 256));
  EXPECT_EQ(graph_chunks::draw(upstream, SIZE_MAX, 256).error().reason, gpumem::outcome::too_large);
}

TEST_F(graph_chunks_test, block_is_found_in_its_chunk) {
  graph_chunks chunks;
  range_allocator ranges;
  for (std::uintptr_t const base : {0x10000u, 0x30000u}) chunks.add({.base = base, .bytes = 4 * KiB}, ranges);
  EXPECT_EQ(ranges.free_bytes(), 8 * KiB);
  std::vector<std::uintptr_t> bases;
  chunks.visit([&](chunk const& each) { bases.push_back(each.base); });
  EXPECT_EQ(bases, (std::vector<std::uintptr_t>{0x10000, 0x30000}));
  auto const* const found = chunks.find_containing(reinterpret_cast<void const*>(0x30fffu));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->base, 0x30000u);
  EXPECT_EQ(chunks.find_containing(reinterpret_cast<void const*>(0x20000u)), nullptr);
  EXPECT_EQ(chunks.find_containing(reinterpret_cast<void const*>(0x31000u)), nullptr);
}

} // namespace
