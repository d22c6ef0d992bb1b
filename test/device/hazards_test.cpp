// The hazards of reuse, one per test. Each keeps a block busy with a long kernel and requests its memory elsewhere at
// once, so that a missing order is seen every time. These tests find the planted faults of
// test/mutants/gpu_mutants.txt.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t size = std::size_t{4} << 20;
constexpr unsigned long_enough = 50'000; // microseconds: far more than the host takes to enqueue a wrong reuse
constexpr std::uint64_t rounds = 3;

} // namespace

class hazards_on_device : public device_test {
protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped()) return; // without a device there are no streams
    for (int i = 0; i < 3; ++i) streams_.emplace_back(device{0});
  }
  stream& a() { return streams_[0]; }
  stream& b() { return streams_[1]; }
  stream& c() { return streams_[2]; }

  static void fill(stream& on, void* block, std::uint64_t value, std::size_t bytes = size) {
    stamp::write(on.get(), block, bytes, value);
  }
  /// Keeps the block in use on the stream, and checks it after all other work has had the time to overwrite it.
  void hold(stream_ref on, void const* block, std::uint64_t value, std::size_t bytes = size) {
    stamp::check(on.get(), block, bytes, value, wrong_, long_enough);
  }

private:
  std::vector<stream> streams_;
};

TEST_F(hazards_on_device, memory_of_another_stream_is_reused_after_its_work) {
  pool_resource pool{cuda_resource{device{0}}, {.limit = size}};
  for (std::uint64_t round = 0; round < 2 * rounds; ++round) {
    auto& from = round % 2 ? b() : a();
    auto& to = round % 2 ? a() : b();
    auto* const first = pool.allocate(from, size);
    fill(from, first, round);
    hold(from, first, round);
    pool.deallocate(from, first, size);
    auto* const second = pool.allocate(to, size);
    EXPECT_EQ(second, first);
    fill(to, second, ~round);
    pool.deallocate(to, second, size);
  }
  EXPECT_GT(pool.statistics().reuse_waited, 0u) << "no stream was made to wait";
}

TEST_F(hazards_on_device, recorded_use_keeps_the_block_from_its_own_stream) {
  pool_resource pool{cuda_resource{device{0}}, {.limit = size}};
  event filled{device{0}};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    auto* const block = pool.allocate(a(), size);
    fill(a(), block, round);
    filled.record(a());
    b().wait(filled);
    hold(b(), block, round);
    pool.record_use(block, b());
    pool.deallocate(a(), block, size);
    auto* const next = pool.allocate(a(), size);
    EXPECT_EQ(next, block);
    fill(a(), next, ~round);
    pool.deallocate(a(), next, size);
  }
}

TEST_F(hazards_on_device, coalesced_memory_is_reused_after_the_work_of_both_streams) {
  pool_resource pool{cuda_resource{device{0}}, {.limit = 2 * size}};
  pool.deallocate(c(), pool.allocate(c(), 2 * size), 2 * size); // makes one chunk
  for (std::uint64_t round = 0; round < rounds; ++round) {
    auto* const lower = pool.allocate(a(), size);
    auto* const upper = pool.allocate(b(), size);
    fill(a(), lower, round);
    fill(b(), upper, ~round);
    hold(a(), lower, round);
    hold(b(), upper, ~round);
    pool.deallocate(a(), lower, size);
    pool.deallocate(b(), upper, size);
    auto* const whole = pool.allocate(c(), 2 * size);
    EXPECT_EQ(whole, std::min(lower, upper));
    fill(c(), whole, round + 1000, 2 * size);
    pool.deallocate(c(), whole, 2 * size);
  }
}

TEST_F(hazards_on_device, host_gets_memory_after_its_kernels) {
  pool_resource pool{managed_resource{device{0}}, {.limit = size}};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    auto* const block = pool.allocate(a(), size);
    fill(a(), block, round);
    hold(a(), block, round);
    pool.deallocate(a(), block, size);
    auto* const hosts = pool.allocate_sync(size);
    EXPECT_EQ(hosts, block);
    std::memset(hosts, 0xee, size);
    pool.deallocate_sync(hosts, size);
  }
}

TEST_F(hazards_on_device, use_on_another_stream_is_ordered_before_and_after) {
  pool_resource pool{cuda_resource{device{0}}, {.limit = size}};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    auto block = pool.acquire(a(), size).wait();
    stamp::write(a().get(), block.data(), size, round, long_enough);
    {
      auto const use = block.use_on(b());
      hold(b(), block.data(), round);
    }
    block.reset();
    auto* const next = pool.allocate(a(), size);
    fill(a(), next, ~round);
    pool.deallocate(a(), next, size);
  }
}

TEST_F(hazards_on_device, block_of_a_driver_pool_is_freed_after_its_foreign_stream) {
  async_resource pool{device{0}, {.limit = std::size_t{32} << 20}};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    cudaStream_t foreign = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking), cudaSuccess);
    auto block = pool.acquire(stream_ref{foreign}, 20 * (size / 4)).wait(); // a second one does not fit beside it
    stamp::write(foreign, block.data(), block.bytes(), round);
    hold(stream_ref{foreign}, block.data(), round, block.bytes());
    auto const bytes = block.bytes();
    block.reset();
    ASSERT_EQ(cudaStreamDestroy(foreign), cudaSuccess);
    auto* const next = pool.allocate(a(), bytes);
    fill(a(), next, ~round, bytes);
    pool.deallocate(a(), next, bytes);
  }
}
