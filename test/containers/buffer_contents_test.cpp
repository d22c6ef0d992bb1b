// The contents of a buffer: copies in and out, fills, and refused calls.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "buffer_fixture.hpp"

namespace {

using gpumem::buffer;
using gpumem::host_resource;
using test::bytes;
using test::contents;
using test::counting;

class buffer_contents : public test::buffer_fixture {};

TEST_F(buffer_contents, parts_are_copied_in_and_out) {
  auto block = filled(100);
  auto const source = counting(10, 201);
  block.copy_from(source.data(), 10, 90);
  block.write(source.data(), 5, 20);
  auto expected = counting(100);
  std::copy_n(source.begin(), 10, expected.begin() + 90);
  std::copy_n(source.begin(), 5, expected.begin() + 20);
  EXPECT_EQ(contents(block), expected);
  bytes some(20);
  block.copy_to(some.data(), 20, 80);
  block.synchronize();
  EXPECT_TRUE(std::equal(some.begin(), some.end(), expected.begin() + 80));
  block.copy_from(block, 10, 0, 90);
  std::copy_n(source.begin(), 10, expected.begin());
  EXPECT_EQ(contents(block), expected);
}

TEST_F(buffer_contents, ranges_beyond_the_size_are_refused) {
  auto block = filled(100);
  auto other = filled(50);
  block.reserve(1000); // only the size counts, not the capacity
  bytes place(200);
  for (auto const& [count, offset] :
       {std::pair{std::size_t{101}, std::size_t{0}}, {1, 100}, {50, 51}, {0, 101}, {SIZE_MAX, 1}, {1, SIZE_MAX}}) {
    EXPECT_THROW(block.copy_from(place.data(), count, offset), std::out_of_range);
    EXPECT_THROW(block.copy_to(place.data(), count, offset), std::out_of_range);
    EXPECT_THROW(block.read(place.data(), count, offset), std::out_of_range);
    EXPECT_THROW(block.read_on(b, place.data(), count, offset), std::out_of_range);
    EXPECT_THROW(block.write(place.data(), count, offset), std::out_of_range);
    EXPECT_THROW(block.fill(std::byte{}, count, offset), std::out_of_range);
    EXPECT_THROW(block.copy_from(other, count, offset), std::out_of_range);
    EXPECT_THROW(other.copy_from(block, count, 0, offset), std::out_of_range);
  }
  EXPECT_EQ(contents(block), counting(100));
}

TEST_F(buffer_contents, copy_onto_itself_is_refused) {
  auto block = filled(100);
  EXPECT_THROW(block.copy_from(block, 10, 5, 0), std::invalid_argument);
  EXPECT_THROW(block.copy_from(block, 10, 0, 9), std::invalid_argument);
  EXPECT_THROW(block.copy_from(block, 10, 7, 7), std::invalid_argument);
  block.copy_from(block, 10, 10, 0);
  block.assign(block);
  EXPECT_EQ(block.size(), 100u);
}

TEST_F(buffer_contents, fill_sets_all_or_a_part) {
  auto block = filled(100);
  block.fill(std::byte{7});
  block.fill(std::byte{9}, 10, 5);
  bytes expected(100, 7);
  std::fill_n(expected.begin() + 5, 10, 9);
  EXPECT_EQ(contents(block), expected);
}

TEST_F(buffer_contents, host_memory_is_filled_in_stream_order) {
  buffer block{a, host_resource{}, 100};
  auto* const host = static_cast<unsigned char*>(block.data());
  std::fill_n(host, 100, static_cast<unsigned char>(1));
  gpumem::simulator::work(a, {}, {}, [host] { host[99] += 1; });
  auto const fills = gpumem::driver_api::driver_calls("cuMemsetD8Async");
  block.fill(std::byte{7}, 99);
  block.fill(std::byte{9}, 1, 98);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuMemsetD8Async"), fills); // which does not accept such memory
  block.synchronize();
  bytes expected(100, 7);
  expected[98] = 9;
  expected[99] = 2;
  EXPECT_TRUE(std::equal(host, host + 100, expected.begin()));
  gpumem::simulator::fail_call("cuLaunchHostFunc", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(block.fill(std::byte{1}), gpumem::cuda_error);
}

TEST_F(buffer_contents, assignment_copies_size_and_contents) {
  auto const large = filled(500), small = filled(10);
  buffer block{b, host_resource{}, 100};
  block.assign(large);
  EXPECT_EQ(contents(block), counting(500));
  block.assign(small);
  EXPECT_EQ(block.capacity(), 500u);
  EXPECT_EQ(contents(block), counting(10));
  block.assign(buffer{a, resource, 0});
  EXPECT_TRUE(block.is_empty());
}

TEST_F(buffer_contents, copy_can_use_another_resource) {
  auto block = filled(100);
  block.reserve(1000);
  auto const same = buffer::copy_of(b, block);
  auto const other = buffer::copy_of(b, host_resource{}, block);
  EXPECT_TRUE(same.resource() == block.resource());
  EXPECT_FALSE(other.resource() == block.resource());
  EXPECT_EQ(same.capacity(), 100u);
  EXPECT_EQ(same.stream().get(), b.get());
  block.fill(std::byte{0});
  EXPECT_EQ(contents(same), counting(100));
  EXPECT_EQ(contents(other), counting(100));
}

TEST_F(buffer_contents, growth_and_reads_are_refused_in_a_capture) {
  auto block = filled(100);
  a.begin_capture();
  unsigned char byte = 0;
  EXPECT_THROW(block.resize(200), gpumem::acquire_error);
  EXPECT_THROW(block.read(&byte, 1), gpumem::acquire_error);
  EXPECT_THROW(block.read_on(a, &byte, 1), gpumem::acquire_error);
  EXPECT_THROW(block.write(&byte, 1), gpumem::acquire_error);
  block.fill(std::byte{7}); // becomes a node of the graph
  gpumem::driver_api::driver().graph_destroy(a.end_capture());
  EXPECT_EQ(contents(block), counting(100));
}

} // namespace
