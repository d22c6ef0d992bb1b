// gpumem::allocation, which frees its block, and the overloads of a resource's calls.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <cuda.h>

import gpumem;
#include "../support/parking_resource.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::allocation;
using gpumem::outcome;
using gpumem::stream;
using gpumem::extend::stream_key;

class allocation_test : public testing::Test {
protected:
  void TearDown() override { EXPECT_EQ(resource.state().used(), 0u); }
  allocation take(std::size_t bytes) { return resource.acquire(a, bytes).wait(); }
  gpumem::device first{0};
  stream a{first}, b{first};
  test::parking_resource resource{1 << 20};
};

TEST_F(allocation_test, has_the_requested_size_alignment_and_stream) {
  auto const block = resource.acquire(a, 100, {.alignment = 512}).wait();
  EXPECT_TRUE(block);
  EXPECT_EQ(block.bytes(), 100u);
  EXPECT_EQ(block.alignment(), 512u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % 512, 0u);
  EXPECT_EQ(block.stream().get(), a.get());
  EXPECT_EQ(block.as<int>().size(), 25u);
  EXPECT_EQ(static_cast<void*>(block.as<double>().data()), block.data());
  EXPECT_EQ(block.as<double>().size(), 12u); // whole elements only
}

TEST_F(allocation_test, moved_allocation_is_freed_once) {
  auto one = take(10);
  auto* const p = one.data();
  allocation two{std::move(one)};
  EXPECT_FALSE(one); // the moved-from state is tested
  EXPECT_EQ(two.data(), p);
  auto three = take(20);
  three = std::move(two); // frees the block of 20 bytes
  EXPECT_EQ(resource.state().used(), 10u);
  auto& self = three;
  three = std::move(self);
  EXPECT_EQ(three.data(), p);
  three.reset();
  three.reset();
  EXPECT_EQ(three.bytes(), 0u);
}

TEST_F(allocation_test, release_hands_the_block_to_the_caller) {
  auto block = take(10);
  auto* const p = block.release();
  EXPECT_FALSE(block);
  EXPECT_EQ(block.bytes(), 0u);
  EXPECT_EQ(resource.state().used(), 10u);
  resource.deallocate(a, p, 10);
}

TEST_F(allocation_test, deallocate_on_another_stream_frees_only_there) {
  auto block = take(10);
  block.reset(b);
  EXPECT_FALSE(block);
  EXPECT_THROW(take(10).reset(gpumem::stream_ref{reinterpret_cast<CUstream>(0x77)}), gpumem::cuda_error);
}

TEST_F(allocation_test, use_on_another_stream_is_ordered_before_and_after) {
  auto& of_a = a.key().identity().timeline();
  auto& of_b = b.key().identity().timeline();
  auto const block = take(10);
  auto const before = of_a.current_epoch();
  {
    auto const use = block.use_on(b);
    EXPECT_TRUE(of_b.ordered_after(of_a, before));
    auto const used = of_b.current_epoch();
    EXPECT_FALSE(of_a.ordered_after(of_b, used));
  }
  EXPECT_TRUE(of_a.ordered_after(of_b, of_b.current_epoch() - 1));
}

TEST_F(allocation_test, moved_use_ends_once) {
  auto const block = take(10);
  auto use = block.use_on(b);
  auto const records = gpumem::driver_api::driver_calls("cuEventRecord");
  { auto const moved = std::move(use); }
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuEventRecord"), records + 1);
}

TEST_F(allocation_test, set_stream_orders_the_allocation_on_the_new_stream) {
  auto block = take(10);
  auto const before = a.key().identity().timeline().current_epoch();
  block.set_stream(b);
  EXPECT_EQ(block.stream().get(), b.get());
  EXPECT_TRUE(b.key().identity().timeline().ordered_after(a.key().identity().timeline(), before));
  EXPECT_THROW(block.set_stream(gpumem::stream_ref{reinterpret_cast<CUstream>(0x77)}), gpumem::cuda_error);
  EXPECT_EQ(block.stream().get(), b.get()); // unchanged
}

TEST_F(allocation_test, is_freed_with_the_handle_of_its_foreign_stream) {
  gpumem::device_guard const scope{first};
  CUstream handle = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&handle, CU_STREAM_NON_BLOCKING),
                            "cuStreamCreate");
  auto block = resource.acquire(gpumem::stream_ref{handle}, 10).wait();
  auto const ids = gpumem::driver_api::driver_calls("cuStreamGetId"),
             captures = gpumem::driver_api::driver_calls("cuStreamIsCapturing");
  block.reset();
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamGetId"), ids + 1);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamIsCapturing"), captures + 1);
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_destroy(handle), "cuStreamDestroy");
  EXPECT_NO_THROW(gpumem::simulator::expect_silent());
}

TEST_F(allocation_test, can_outlive_the_foreign_stream_that_it_left) {
  gpumem::device_guard const scope{first};
  CUstream handle = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&handle, CU_STREAM_NON_BLOCKING),
                            "cuStreamCreate");
  auto block = resource.acquire(gpumem::stream_ref{handle}, 10).wait();
  block.set_stream(a);
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_destroy(handle), "cuStreamDestroy");
  block.reset();
  EXPECT_NO_THROW(gpumem::simulator::expect_silent());
}

TEST_F(allocation_test, can_be_destroyed_on_another_thread) {
  auto block = take(10);
  std::thread{[&] { auto const here = std::move(block); }}.join();
}

TEST_F(allocation_test, all_handles_of_a_resource_allocate_alike) {
  auto* const p = resource.allocate(a, 10);
  resource.deallocate(a, p, 10, 16); // a different alignment is no misuse
  auto const q = resource.try_allocate(a, 10, 1024);
  ASSERT_TRUE(q);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*q) % 1024, 0u);
  resource.deallocate(a, *q, 10, 1024);
  auto* const r = resource.allocate_sync(10);
  resource.deallocate_sync(r, 10);
  auto const s = resource.ref();
  static_assert(sizeof(s) == 16);
  EXPECT_TRUE(s == gpumem::pool_ref{resource});
}

TEST_F(allocation_test, zero_bytes_are_null_and_freeing_null_does_nothing) {
  EXPECT_EQ(resource.allocate(a, 0), nullptr);
  EXPECT_EQ(resource.allocate_sync(0), nullptr);
  EXPECT_EQ(*resource.try_allocate(a, 0), nullptr);
  resource.deallocate(a, nullptr, 0);
  resource.deallocate(a, nullptr, 10);
  resource.deallocate_sync(nullptr, 0);
  EXPECT_EQ(resource.state().tries(), 0u);
}

TEST_F(allocation_test, refused_requests_change_nothing) {
  for (std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{48}}) {
    EXPECT_EQ(resource.try_allocate(a, 10, alignment).error().reason, outcome::invalid_argument);
    EXPECT_THROW((void)resource.allocate(a, 10, alignment), std::invalid_argument);
    EXPECT_THROW((void)resource.allocate_sync(10, alignment), std::invalid_argument);
  }
  for (std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 1}) {
    EXPECT_EQ(resource.try_allocate(a, bytes).error(), (gpumem::failure{outcome::too_large, 0, bytes}));
    EXPECT_THROW((void)resource.allocate(a, bytes), gpumem::out_of_memory);
  }
  EXPECT_EQ(resource.state().tries(), 0u);
}

TEST_F(allocation_test, exception_carries_the_statistics) {
  auto const block = take(1000);
  try {
    (void)resource.allocate(a, 1 << 20);
    ADD_FAILURE() << "it was granted";
  } catch (gpumem::out_of_memory const& e) {
    EXPECT_EQ(e.info().requested, std::size_t{1} << 20);
    EXPECT_EQ(e.info().live, 1000u);
    EXPECT_EQ(e.info().limit, std::size_t{1} << 20);
    EXPECT_EQ(e.info().device, 0);
    EXPECT_GT(e.info().device_total, 0u);
    EXPECT_EQ(e.info().stream, a.key().identity().id());
  }
}

} // namespace
