// Out of memory on a real device, at a pool's limit and of the GPU itself, and what works afterwards.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <cstddef>
#include <vector>

import gpumem;

using namespace gpumem;

class out_of_memory_on_device : public device_test {};

TEST_F(out_of_memory_on_device, limit_holds_and_the_pool_recovers) {
  constexpr std::size_t limit = std::size_t{64} << 20, size = std::size_t{1} << 20;
  pool_resource pool{cuda_resource{device{0}}, {.limit = limit}};
  stream on{device{0}};
  std::vector<void*> blocks;
  for (;;) {
    auto const result = pool.try_allocate(on, size);
    if (!result) {
      EXPECT_EQ(result.error().reason, outcome::exhausted);
      break;
    }
    blocks.push_back(*result);
    stamp::write(on.get(), *result, size, blocks.size());
  }
  EXPECT_EQ(blocks.size(), limit / size);
  for (std::size_t i = 0; i < blocks.size(); ++i) stamp::check(on.get(), blocks[i], size, i + 1, wrong_);
  for (auto* const block : blocks) pool.deallocate(on, block, size);
  auto* const whole = pool.allocate(on, limit);
  stamp::write(on.get(), whole, limit, 77);
  stamp::check(on.get(), whole, limit, 77, wrong_);
  pool.deallocate(on, whole, limit);
}

TEST_F(out_of_memory_on_device, exception_carries_the_statistics) {
  pool_resource pool{cuda_resource{device{0}}, {.limit = std::size_t{4} << 20}};
  stream on{device{0}};
  auto* const block = pool.allocate(on, std::size_t{3} << 20);
  try {
    (void)pool.allocate(on, std::size_t{2} << 20);
    FAIL() << "3 and 2 MiB fitted into 4";
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.info().requested, std::size_t{2} << 20);
    EXPECT_EQ(e.info().live, std::size_t{3} << 20);
    EXPECT_EQ(e.info().limit, std::size_t{4} << 20);
    EXPECT_GT(e.info().device_free, 0u);
  }
  pool.deallocate(on, block, std::size_t{3} << 20);
}

TEST_F(out_of_memory_on_device, request_larger_than_the_device_changes_nothing) {
  pool_resource pool{cuda_resource{device{0}}};
  stream on{device{0}};
  auto* const block = pool.allocate(on, 1 << 20);
  stamp::write(on.get(), block, 1 << 20, 4);
  auto const before = pool.statistics();
  EXPECT_THROW((void)pool.allocate(on, device{0}.memory().total + (std::size_t{1} << 30)), out_of_memory);
  EXPECT_EQ(pool.statistics().live, before.live);
  EXPECT_EQ(pool.statistics().reserved, before.reserved);
  stamp::check(on.get(), block, 1 << 20, 4, wrong_);
  auto* const next = pool.allocate(on, 1 << 20);
  stamp::write(on.get(), next, 1 << 20, 5);
  stamp::check(on.get(), next, 1 << 20, 5, wrong_);
  pool.deallocate(on, next, 1 << 20);
  pool.deallocate(on, block, 1 << 20);
}
