// Buffers: how they are constructed, moved, grown and shrunk.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "buffer_fixture.hpp"
#include "foreign_resource.hpp"

namespace {

using gpumem::buffer;
using gpumem::cuda_resource;
using gpumem::host_resource;
using gpumem::stream;
using test::contents;
using test::counting;

static_assert(sizeof(buffer) == 112);
static_assert(std::is_nothrow_move_constructible_v<buffer> && std::is_nothrow_move_assignable_v<buffer>);
static_assert(!std::is_copy_constructible_v<buffer> && !std::is_copy_assignable_v<buffer>);
static_assert(std::is_nothrow_default_constructible_v<buffer>);
static_assert(std::is_constructible_v<buffer, stream&, cuda_resource, int>);
static_assert(std::is_constructible_v<buffer, stream&, host_resource, int, int>);
static_assert(std::is_constructible_v<buffer, gpumem::stream_ref, gpumem::any_pool, std::size_t>);
static_assert(!std::is_constructible_v<buffer, stream&, int*, int>);

class buffer_test : public test::buffer_fixture {};

TEST_F(buffer_test, has_the_requested_size_alignment_and_stream) {
  buffer const block{a, resource, 1000};
  EXPECT_EQ(block.size(), 1000u);
  EXPECT_EQ(block.bytes(), 1000u);
  EXPECT_EQ(block.capacity(), 1000u);
  EXPECT_EQ(block.alignment(), 256u);
  EXPECT_EQ(block.stream().get(), a.get());
  EXPECT_FALSE(block.is_empty());
  EXPECT_TRUE(block.resource() == gpumem::extend::make_any_memory(resource));
  EXPECT_EQ(block.as<double>().size(), 125u);
  EXPECT_EQ(static_cast<void*>(block.as<int>().data()), block.data());
}

TEST_F(buffer_test, keeps_its_alignment_when_it_moves_or_grows) {
  for (std::size_t alignment : {1, 64, 512, 4096, 1 << 20}) {
    buffer block{a, resource, 100, alignment};
    EXPECT_EQ(block.alignment(), alignment);
    block.resize(70'000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % alignment, 0u);
    auto const copy = buffer::copy_of(b, block);
    EXPECT_EQ(copy.alignment(), alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(copy.data()) % alignment, 0u);
    auto const moved = std::move(block);
    EXPECT_EQ(moved.alignment(), alignment);
  }
}

TEST_F(buffer_test, refuses_invalid_alignments_even_for_zero_bytes) {
  for (std::size_t alignment : {0, 3, 48, 257}) {
    EXPECT_THROW((buffer{a, resource, 100, alignment}), std::invalid_argument);
    EXPECT_THROW((buffer{a, resource, 0, alignment}), std::invalid_argument);
  }
  EXPECT_EQ(allocations(), 0);
}

TEST_F(buffer_test, empty_buffer_allocates_nothing_and_can_grow) {
  buffer block{a, resource, 0, 512};
  EXPECT_TRUE(block.is_empty());
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_EQ(block.stream().get(), a.get());
  EXPECT_EQ(allocations(), 0);
  block.fill(std::byte{1});
  block.copy_from(nullptr, 0);
  block.read(nullptr, 0);
  auto const copy = buffer::copy_of(b, block);
  EXPECT_TRUE(copy.is_empty());
  block.resize(10);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % 512, 0u);
}

TEST_F(buffer_test, failed_construction_leaves_no_memory) {
  EXPECT_THROW((buffer{a, resource, 65 << 20}), gpumem::out_of_memory);
  EXPECT_THROW((buffer{a, resource, SIZE_MAX}), gpumem::out_of_memory);
  EXPECT_THROW((buffer{gpumem::stream_ref{reinterpret_cast<CUstream>(0x77)}, resource, 10}), gpumem::cuda_error);
  EXPECT_THROW((buffer{gpumem::stream_ref{reinterpret_cast<CUstream>(0x77)}, resource, 0}), gpumem::cuda_error);
  auto const source = counting(10);
  gpumem::simulator::fail_call("cuMemcpyAsync", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(buffer::copy_of(a, resource, source.data(), source.size()), gpumem::cuda_error);
}

TEST_F(buffer_test, refuses_a_default_stream_of_another_device) {
  gpumem::device_guard const scope{second};
  EXPECT_THROW((buffer{gpumem::stream_ref{CUstream{}}, resource, 10}), std::invalid_argument);
}

TEST_F(buffer_test, uses_the_current_resource_by_default) {
  stream const on_second{second};
  buffer const block{on_second, 100}, aligned{on_second, 100, 4096};
  EXPECT_TRUE(block.resource() == gpumem::extend::make_any_memory(gpumem::current_resource(second)));
  EXPECT_EQ(aligned.alignment(), 4096u);
}

TEST_F(buffer_test, takes_over_an_acquired_block) {
  buffer block{resource.acquire(a, 100, {.alignment = 1024}).wait(), resource};
  EXPECT_EQ(block.size(), 100u);
  EXPECT_EQ(block.alignment(), 1024u);
  EXPECT_EQ(allocations(), 1);
  block.resize(200);
  EXPECT_EQ(allocations(), 2);
  buffer nothing{resource.acquire(b, 0).wait(), resource};
  EXPECT_EQ(nothing.stream().get(), b.get());
  nothing.resize(10);
  EXPECT_EQ(nothing.size(), 10u);
}

TEST_F(buffer_test, release_hands_over_its_block) {
  auto block = filled(100);
  block.reserve(1000);
  auto* const p = block.data();
  auto const given = block.release();
  EXPECT_EQ(given.data(), p);
  EXPECT_EQ(given.bytes(), 1000u);
  EXPECT_TRUE(block.is_empty());
  EXPECT_THROW(block.resize(1), std::invalid_argument);
}

TEST_F(buffer_test, moved_buffer_is_freed_once) {
  auto one = filled(100);
  auto* const p = one.data();
  auto two = std::move(one);
  EXPECT_EQ(two.data(), p);
  EXPECT_EQ(contents(two), counting(100));
  auto three = filled(50);
  three = std::move(two); // frees the 50 bytes
  EXPECT_EQ(resource.counters().bytes.value, 100);
  auto& self = three;
  three = std::move(self);
  EXPECT_EQ(contents(three), counting(100));
  one = filled(30);
  EXPECT_EQ(contents(one), counting(30));
}

TEST_F(buffer_test, is_empty_once_moved_from) {
  auto gone = filled(100);
  auto const kept = std::move(gone);
  buffer never;
  for (auto* const block : {&gone, &never}) {
    EXPECT_TRUE(block->is_empty());
    EXPECT_EQ(block->size(), 0u);
    EXPECT_EQ(block->capacity(), 0u);
    EXPECT_EQ(block->data(), nullptr);
    EXPECT_FALSE(block->resource().has_value());
    unsigned char byte = 0;
    EXPECT_THROW(block->resize(0), std::invalid_argument);
    EXPECT_THROW(block->reserve(1), std::invalid_argument);
    EXPECT_THROW(block->shrink_to_fit(), std::invalid_argument);
    EXPECT_THROW(block->clear(), std::invalid_argument);
    EXPECT_THROW(block->assign(kept), std::invalid_argument);
    EXPECT_THROW(block->copy_from(&byte, 0), std::invalid_argument);
    EXPECT_THROW(block->copy_to(&byte, 0), std::invalid_argument);
    EXPECT_THROW(block->copy_from(kept, 0), std::invalid_argument);
    EXPECT_THROW(block->read(&byte, 0), std::invalid_argument);
    EXPECT_THROW(block->read_on(b, &byte, 0), std::invalid_argument);
    EXPECT_THROW(block->write(&byte, 0), std::invalid_argument);
    EXPECT_THROW(block->fill(std::byte{}), std::invalid_argument);
    EXPECT_THROW((void)block->use_on(b), std::invalid_argument);
    EXPECT_THROW(block->set_stream(b), std::invalid_argument);
    EXPECT_THROW(block->synchronize(), std::invalid_argument);
    EXPECT_THROW(buffer::copy_of(a, *block), std::invalid_argument);
    EXPECT_FALSE(block->release());
  }
}

TEST_F(buffer_test, resize_within_its_capacity_moves_nothing) {
  auto block = filled(100);
  auto* const p = block.data();
  block.resize(40);
  EXPECT_EQ(block.size(), 40u);
  EXPECT_EQ(block.capacity(), 100u);
  EXPECT_EQ(block.data(), p);
  EXPECT_EQ(contents(block), counting(40));
  block.resize(100);
  EXPECT_EQ(block.data(), p);
  EXPECT_EQ(contents(block), counting(100));
  EXPECT_EQ(allocations(), 1);
}

TEST_F(buffer_test, grows_to_exactly_the_request_and_keeps_its_contents) {
  auto block = filled(100);
  block.resize(300);
  EXPECT_EQ(block.capacity(), 300u);
  EXPECT_EQ(resource.counters().bytes.value, 300);
  block.resize(100);
  EXPECT_EQ(contents(block), counting(100));
}

TEST_F(buffer_test, grows_without_allocating_after_reserve) {
  auto block = filled(100);
  block.reserve(1000);
  EXPECT_EQ(block.size(), 100u);
  EXPECT_EQ(block.capacity(), 1000u);
  EXPECT_EQ(contents(block), counting(100));
  auto* const p = block.data();
  block.reserve(10);
  block.resize(1000);
  EXPECT_EQ(block.data(), p);
  EXPECT_EQ(allocations(), 2);
}

TEST_F(buffer_test, shrink_to_fit_leaves_no_spare_capacity) {
  auto block = filled(100);
  block.shrink_to_fit();
  EXPECT_EQ(allocations(), 1);
  block.resize(30);
  block.shrink_to_fit();
  EXPECT_EQ(block.capacity(), 30u);
  EXPECT_EQ(contents(block), counting(30));
  EXPECT_EQ(resource.counters().bytes.value, 30);
  block.resize(0);
  block.shrink_to_fit();
  EXPECT_EQ(resource.counters().bytes.value, 0);
  EXPECT_EQ(block.data(), nullptr);
}

TEST_F(buffer_test, clear_keeps_resource_stream_and_alignment) {
  buffer block{a, resource, 100, 1024};
  block.clear();
  EXPECT_TRUE(block.is_empty());
  EXPECT_EQ(block.capacity(), 0u);
  EXPECT_EQ(resource.counters().bytes.value, 0);
  block.resize(10);
  EXPECT_EQ(block.alignment(), 1024u);
  EXPECT_EQ(block.stream().get(), a.get());
}

TEST_F(buffer_test, failed_growth_changes_nothing) {
  auto block = filled(100);
  auto* const p = block.data();
  EXPECT_THROW(block.resize(65 << 20), gpumem::out_of_memory);
  EXPECT_THROW(block.reserve(SIZE_MAX), gpumem::out_of_memory);
  gpumem::simulator::fail_call("cuMemcpyAsync", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(block.resize(1000), gpumem::cuda_error);
  EXPECT_EQ(block.size(), 100u);
  EXPECT_EQ(block.capacity(), 100u);
  EXPECT_EQ(block.data(), p);
  EXPECT_EQ(contents(block), counting(100));
  EXPECT_EQ(resource.counters().bytes.value, 100);
}

TEST_F(buffer_test, outlives_every_other_handle_of_its_resource) {
  auto block = [&] {
    gpumem::statistics_adaptor mine{gpumem::pool_resource{cuda_resource{first}}};
    return buffer{a, mine, 100};
  }();
  block.resize(5000);
  block.clear();
  block.resize(10); // meanwhile only the buffer held the resource
}

TEST_F(buffer_test, keeps_a_foreign_resource_alive) {
  foreign_resource resource;
  auto const told = resource.tells();
  {
    auto block = buffer{a, std::move(resource), 100};
    block.resize(200);
    EXPECT_EQ(told->live, 1);
    block.clear();
    EXPECT_GT(told.use_count(), 1);
    block.resize(10);
  }
  EXPECT_EQ(told->live, 0);
  EXPECT_EQ(told.use_count(), 1);
}

} // namespace
