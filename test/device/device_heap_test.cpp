// Heaps of the module on a real device: kernels that nvcc compiled allocate from them, while the host grows and resets
// them and reads their statistics in a coroutine.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"
#include "heap_stamp.hpp"

#include <array>
#include <coroutine>
#include <cstddef>

import gpumem;
import gpumem.device_heap;

using namespace gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr unsigned count = 100'000;

class device_heap_on_device : public device_test {};

task<> grow_beside_kernels(unsigned long long* wrong) {
  pool_resource<cuda_resource> pool{device{0}};
  stream on{device{0}};
  device_heap heap{pool, on, {.bytes = 8 * mib, .reserve = 4096 * mib}};
  auto const first_view = heap.view();
  uninitialized_vector<void*> blocks{on, pool, 8 * count};
  std::size_t live = 0;
  for (unsigned round = 0; round < 8; ++round) {
    heap_stamp::allocate(on.get(), first_view, blocks.data() + round * count, count, 200);
    auto const seen = co_await heap.statistics(on);
    EXPECT_EQ(seen.live + seen.failed, (round + 1) * count) << "each thread has a block, or was refused";
    EXPECT_GE(seen.live, live);
    EXPECT_TRUE(seen.failed == 0 || seen.largest_failed == 200);
    live = seen.live;
    co_await heap.grow_to(on, heap.bytes() * 2); // beside the kernel of the next round
  }
  EXPECT_GE(live, count) << "later kernels get the memory of a growth by the first view";
  for (unsigned round = 0; round < 8; ++round)
    heap_stamp::free(on.get(), heap.view(), blocks.data() + round * count, count, 200, wrong);
  auto const empty = co_await heap.statistics(on);
  EXPECT_EQ(empty.live, 0u);
  EXPECT_EQ(empty.bad_frees, 0u);
}

TEST_F(device_heap_on_device, grows_between_kernels) { sync_wait(grow_beside_kernels(wrong_)); }

TEST_F(device_heap_on_device, each_size_fills_the_heap_after_a_reset) {
  pool_resource<cuda_resource> pool{device{0}};
  stream on{device{0}};
  device_heap heap{pool, on, {.bytes = 64 * mib}};
  uninitialized_vector<void*> blocks{on, pool, 1 << 23};
  for (std::size_t const bytes : {16, 100, 4096, 65536, 300'000}) {
    auto const requests = static_cast<unsigned>(128 * mib / bytes);
    heap_stamp::allocate(on.get(), heap.view(), blocks.data(), requests, bytes);
    auto const full = sync_wait(heap.statistics(on));
    EXPECT_EQ(full.live + full.failed, requests) << bytes;
    EXPECT_GT(full.failed, 0u) << bytes;
    EXPECT_GE(full.live_bytes, 56 * mib) << bytes;
    heap_stamp::free(on.get(), heap.view(), blocks.data(), requests, bytes, wrong_);
    auto const empty = sync_wait(heap.statistics(on));
    EXPECT_EQ(empty.live, 0u) << bytes;
    EXPECT_EQ(empty.bad_frees, 0u) << bytes;
    heap.reset(on);
    EXPECT_EQ(sync_wait(heap.statistics(on)).free, 64 * mib) << bytes;
  }
}

} // namespace
