// The order of work on buffers: on several streams and devices, and where buffers may be destroyed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::buffer;
using gpumem::cuda_resource;
using gpumem::stream;
namespace simulator = gpumem::simulator;

constexpr std::size_t size = 4096;

// To the checker each allocation and free of the pool below is a write of the whole block.
class buffer_order : public simulated {
protected:
  using pool_type = simulator::checked<gpumem::pool_resource<cuda_resource>>;
  gpumem::device first{0}, second{1};
  stream a{first}, b{first}, far{second};
  pool_type pool{gpumem::pool_resource{cuda_resource{first}}};
  pool_type far_pool{gpumem::pool_resource{cuda_resource{second}}};

  static void writes(gpumem::stream_ref on, buffer const& block) {
    simulator::work(on, {simulator::write(block.data(), block.size())});
  }
  static void reads(gpumem::stream_ref on, buffer const& block) {
    simulator::work(on, {simulator::read(block.data(), block.size())});
  }
};

TEST_F(buffer_order, undeclared_use_on_another_stream_is_found) {
  {
    buffer block{a, pool, size};
    writes(a, block);
    reads(b, block);
  }
  simulator::run_until_idle();
  auto const found = simulator::take_findings(); // shows that the checker can find a fault in the tests below
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].kind, simulator::finding_kind::unordered_access);
  EXPECT_EQ(found[1].kind, simulator::finding_kind::unordered_free);
}

TEST_F(buffer_order, use_on_another_stream_is_ordered_before_and_after) {
  for (int i = 0; i < 20; ++i) {
    buffer block{a, pool, size};
    writes(a, block);
    {
      auto const use = block.use_on(b);
      writes(b, block);
    }
    writes(a, block);
  }
}

TEST_F(buffer_order, use_on_another_device_is_ordered_before_and_after) {
  auto const waits = gpumem::driver_api::driver_calls("cuCtxSynchronize");
  for (int i = 0; i < 20; ++i) {
    buffer block{a, pool, size};
    writes(a, block);
    {
      auto const use = block.use_on(far);
      writes(far, block);
    }
    writes(a, block);
  }
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuCtxSynchronize"), waits); // by events, without a wait of the host
}

TEST_F(buffer_order, set_stream_orders_the_buffer_on_the_new_stream) {
  for (auto* const to : {&b, &far}) {
    buffer block{a, pool, size};
    writes(a, block);
    block.set_stream(*to);
    EXPECT_EQ(block.stream().get(), to->get());
    writes(*to, block);
    block.resize(2 * size);
    block.set_stream(a);
    writes(a, block);
  }
}

TEST_F(buffer_order, failed_set_stream_changes_nothing) {
  buffer block{a, pool, size};
  EXPECT_THROW(block.set_stream(gpumem::stream_ref{reinterpret_cast<CUstream>(0x77)}), gpumem::cuda_error);
  EXPECT_THROW((void)block.use_on(gpumem::stream_ref{reinterpret_cast<CUstream>(0x77)}), gpumem::cuda_error);
  EXPECT_EQ(block.stream().get(), a.get());
  gpumem::device_guard const scope{second};
  EXPECT_THROW(block.set_stream(gpumem::stream_ref{CUstream{}}), std::invalid_argument);
  EXPECT_THROW((void)block.use_on(gpumem::stream_ref{CUstream{}}), std::invalid_argument);
  writes(a, block);
}

TEST_F(buffer_order, copy_to_another_stream_leaves_both_buffers_usable) {
  for (int i = 0; i < 20; ++i) {
    buffer source{a, pool, size}, target{b, pool, size};
    source.fill(std::byte{1});
    writes(b, target);
    target.copy_from(source, size);
    writes(a, source); // after the copy has read it
    auto const copy = buffer::copy_of(a, target);
    target.clear();
    unsigned char last = 0;
    copy.read(&last, 1, size - 1);
    EXPECT_EQ(last, 1);
  }
}

TEST_F(buffer_order, copy_between_devices_leaves_both_buffers_usable) {
  for (int i = 0; i < 20; ++i) {
    auto const near = buffer::copy_of(a, pool, std::vector<unsigned char>(size, 5).data(), size);
    buffer there{far, far_pool, size};
    writes(far, there);
    there.copy_from(near, size);
    writes(a, near);
    buffer back{b, pool, 10};
    back.assign(there);
    there.clear();
    unsigned char last = 0;
    back.read(&last, 1, size - 1);
    EXPECT_EQ(last, 5);
  }
}

TEST_F(buffer_order, read_on_another_stream_sees_earlier_work_of_both_streams) {
  buffer block{a, pool, 2};
  auto* const p = static_cast<unsigned char*>(block.data());
  simulator::work(a, {simulator::write(p, 1)}, {}, [p] { p[0] = 3; });
  {
    auto const use = block.use_on(b);
    simulator::work(b, {simulator::write(p + 1, 1)}, {}, [p] { p[1] = 4; });
  }
  unsigned char read[2]{};
  block.read_on(b, read, 2);
  EXPECT_EQ(read[0], 3);
  EXPECT_EQ(read[1], 4);
  block.read_on(far, read, 1, 1);
  EXPECT_EQ(read[0], 4);
  block.fill(std::byte{0});
}

TEST_F(buffer_order, growth_frees_the_old_block_after_the_copy) {
  buffer block{a, pool, size};
  for (std::size_t i = 1; i <= 20; ++i) {
    writes(a, block);
    block.resize(i * 2 * size);
    buffer const other{b, pool, size}; // may get the memory that was just freed
    writes(b, other);
  }
}

TEST_F(buffer_order, host_memory_is_copied_after_earlier_host_functions) {
  gpumem::host_resource const host;
  buffer plain{a, host, size}, other{b, host, size}, reached{b, pool, size};
  unsigned char last = 0;
  for (unsigned i = 1; i <= 5; ++i) {
    plain.fill(std::byte(i)); // by a host function, which runs later
    reached.copy_from(plain, size);
    reached.read(&last, 1, size - 1);
    EXPECT_EQ(last, i);
    plain.fill(std::byte(i + 10));
    other.assign(plain);
    plain.fill(std::byte(0));
    plain.resize(2 * size * i);
    other.copy_to(&last, 1, size - 1);
    EXPECT_EQ(last, i + 10);
    plain.write(&last, 1, 7); // after the fill
    plain.read_on(b, &last, 1, 7);
    EXPECT_EQ(last, i + 10);
  }
}

TEST_F(buffer_order, buffer_works_while_another_device_is_current) {
  std::optional<buffer> block{std::in_place, a, pool, size};
  std::optional<buffer> on_default{std::in_place, gpumem::stream_ref{CUstream{}}, cuda_resource{first}, size};
  std::optional<buffer> on_legacy{std::in_place, gpumem::stream_ref{reinterpret_cast<CUstream>(1)}, pool, size};
  {
    gpumem::device_guard const scope{second};
    for (auto* const each : {&block, &on_default, &on_legacy}) {
      (*each)->fill(std::byte{6});
      (*each)->resize(2 * size);
      unsigned char last = 0;
      (*each)->read(&last, 1, size - 1);
      EXPECT_EQ(last, 6);
      { auto const use = (*each)->use_on(b); }
      (*each)->shrink_to_fit();
      auto moved = std::move(**each);
      each->reset();
    }
    EXPECT_EQ(gpumem::device::current(), second);
  }
}

TEST_F(buffer_order, host_memory_works_on_a_stream_of_another_device) {
  buffer block{far, gpumem::host_resource{}, size};
  block.fill(std::byte{6});
  { auto const use = block.use_on(a); }
  block.resize(2 * size);
  block.set_stream(a);
  block.set_stream(far);
  unsigned char last = 0;
  block.read(&last, 1, size - 1);
  EXPECT_EQ(last, 6);
}

TEST_F(buffer_order, buffer_can_be_destroyed_after_its_stream) {
  std::optional<buffer> block;
  gpumem::pool_resource const plain{cuda_resource{first}};
  {
    stream mine{first};
    block.emplace(mine, plain, size);
    writes(mine, *block);
  }
  block.reset();
  buffer const next{b, plain, size};
  writes(b, next);
}

TEST_F(buffer_order, buffer_can_be_destroyed_after_a_foreign_stream_that_it_left) {
  gpumem::pool_resource const plain{cuda_resource{first}};
  gpumem::device_guard const current{first};
  CUstream handle = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&handle, CU_STREAM_NON_BLOCKING),
                            "cuStreamCreate");
  std::optional<buffer> block{std::in_place, gpumem::stream_ref{handle}, plain, size};
  writes(gpumem::stream_ref{handle}, *block);
  block->resize(2 * size);
  block->set_stream(b);
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_destroy(handle), "cuStreamDestroy");
  block.reset();
  buffer const next{b, plain, size};
  writes(b, next);
}

TEST_F(buffer_order, buffer_can_be_destroyed_on_another_thread) {
  buffer block{a, pool, size};
  writes(a, block);
  std::thread{[&] {
    auto mine = std::move(block);
    mine.resize(2 * size);
  }}.join();
}

} // namespace
