// Sources on a real device: memory is usable, aligned, not shared, and is returned.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

import gpumem;

using namespace gpumem;

class sources_on_device : public device_test {};

TEST_F(sources_on_device, kernels_write_and_read_memory_of_cuda_resource) {
  cuda_resource source{device{0}};
  stream on{device{0}};
  for (std::size_t bytes : {std::size_t{8}, std::size_t{4096}, std::size_t{1} << 20, std::size_t{1} << 28}) {
    auto* const block = source.allocate(on, bytes);
    stamp::write(on.get(), block, bytes, bytes);
    stamp::check(on.get(), block, bytes, bytes, wrong_);
    source.deallocate(on, block, bytes);
  }
}

TEST_F(sources_on_device, cuda_resource_honours_alignments_up_to_a_mebibyte) {
  cuda_resource source{device{0}};
  stream on{device{0}};
  for (std::size_t alignment = 1; alignment <= std::size_t{1} << 20; alignment *= 2) {
    auto* const block = source.allocate(on, 1000, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0u);
    stamp::write(on.get(), block, 1000, alignment);
    stamp::check(on.get(), block, 1000, alignment, wrong_);
    source.deallocate(on, block, 1000, alignment);
  }
}

TEST_F(sources_on_device, free_waits_for_the_work_before_it) {
  cuda_resource source{device{0}};
  stream on{device{0}};
  constexpr std::size_t bytes = std::size_t{64} << 20;
  auto* const block = source.allocate(on, bytes);
  stamp::write(on.get(), block, bytes, 1, 2000);
  stamp::check(on.get(), block, bytes, 1, wrong_, 2000);
  source.deallocate(on, block, bytes);
  auto* const next = source.allocate_sync(bytes);
  EXPECT_TRUE(on.is_done()) << "the free returned while a kernel still had the block";
  source.deallocate_sync(next, bytes);
}

TEST_F(sources_on_device, free_of_host_resource_waits_for_the_work_before_it) {
  host_resource source;
  stream on{device{0}};
  std::vector<unsigned char> expected(1 << 20, 7);
  cuda_resource device_memory{device{0}};
  auto* const from = device_memory.allocate(on, expected.size());
  auto* const block = source.allocate(on, expected.size());
  ASSERT_EQ(cudaMemsetAsync(from, 7, expected.size(), on.get()), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(block, from, expected.size(), cudaMemcpyDeviceToHost, on.get()), cudaSuccess);
  on.synchronize();
  EXPECT_EQ(std::memcmp(block, expected.data(), expected.size()), 0);
  source.deallocate(on, block, expected.size());
  device_memory.deallocate(on, from, expected.size());
}

TEST_F(sources_on_device, threads_on_streams_of_their_own_never_share_a_block) {
  cuda_resource source{device{0}};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      stream on{device{0}};
      for (std::uint64_t i = 0; i < 50; ++i) {
        auto* const block = source.allocate(on, 1 << 16);
        stamp::write(on.get(), block, 1 << 16, t << 32 | i, 20);
        stamp::check(on.get(), block, 1 << 16, t << 32 | i, wrong_, 20);
        source.deallocate(on, block, 1 << 16);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(sources_on_device, request_larger_than_the_device_fails_and_the_next_one_succeeds) {
  cuda_resource source{device{0}};
  stream on{device{0}};
  auto const total = device{0}.memory().total;
  EXPECT_THROW((void)source.allocate(on, total + (std::size_t{1} << 30)), out_of_memory);
  auto* const block = source.allocate(on, 1 << 20);
  stamp::write(on.get(), block, 1 << 20, 5);
  stamp::check(on.get(), block, 1 << 20, 5, wrong_);
  source.deallocate(on, block, 1 << 20);
}
