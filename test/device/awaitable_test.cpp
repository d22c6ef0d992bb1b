// Awaitables on a real device: memory and completion awaited in coroutines on several streams.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <cstdint>
#include <utility>
#include <vector>

import gpumem;

using namespace gpumem;

namespace {

task<std::uint64_t> produce_and_consume(auto& pool, stream& producer, stream& consumer, unsigned long long* wrong,
                                        std::uint64_t value) {
  auto block = co_await pool.acquire(producer, 1 << 20);
  stamp::write(producer.get(), block.data(), block.bytes(), value, 50);
  {
    auto const use = block.use_on(consumer);
    stamp::check(consumer.get(), block.data(), block.bytes(), value, wrong, 50);
  }
  co_await completion(consumer);
  co_return value;
}

task<std::uint64_t> rounds(auto& pool, stream& producer, stream& consumer, unsigned long long* wrong,
                           std::uint64_t first) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < 50; ++i) {
    sum += co_await produce_and_consume(pool, producer, consumer, wrong, first + i);
  }
  co_return sum;
}

} // namespace

class awaitables_on_device : public device_test {};

TEST_F(awaitables_on_device, memory_is_used_on_two_streams_and_completion_is_awaited) {
  pool_resource pool{cuda_resource{device{0}}};
  stream a{device{0}}, b{device{0}}, c{device{0}};
  auto const [first, second] = sync_wait(when_all(rounds(pool, a, b, wrong_, 1000), rounds(pool, b, c, wrong_, 2000)));
  EXPECT_EQ(first, 50u * 1000 + 49 * 25);
  EXPECT_EQ(second, 50u * 2000 + 49 * 25);
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(awaitables_on_device, completion_means_that_the_kernel_has_run) {
  stream on{device{0}};
  unsigned* flag = nullptr;
  ASSERT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&flag), sizeof *flag, cudaMemAttachGlobal), cudaSuccess);
  *flag = 0;
  stamp::write(on.get(), wrong_, sizeof *wrong_, 0, 3000);
  stamp::raise(on.get(), flag);
  sync_wait([](stream& s) -> task<void> { co_await completion(s); }(on));
  EXPECT_EQ(*flag, 1u);
  EXPECT_EQ(cudaFree(flag), cudaSuccess);
}

TEST_F(awaitables_on_device, block_is_freed_on_the_stream_that_was_set) {
  pool_resource pool{cuda_resource{device{0}}};
  stream a{device{0}}, b{device{0}};
  auto block = pool.acquire(a, 1 << 20).wait();
  stamp::write(a.get(), block.data(), block.bytes(), 9, 500);
  block.set_stream(b);
  stamp::check(b.get(), block.data(), block.bytes(), 9, wrong_);
  EXPECT_EQ(block.stream().get(), b.get());
}
