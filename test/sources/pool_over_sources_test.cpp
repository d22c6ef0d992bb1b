// A pool over each source: the order of new memory, and of host-accessible memory.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;

constexpr std::size_t chunk = std::size_t{2} << 20;

template <class Source> class pool_over : public simulated {
protected:
  using pool = gpumem::pool_resource<Source>;

  /// Allocates the whole pool as one block, uses it and frees it on the first stream, with the use still pending.
  void* freed_in_use(simulator::checked<pool>& from) {
    void* const p = from.allocate(a_, chunk);
    simulator::work(a_, {simulator::write(p, chunk)}, 50us, [this] { ran_ = true; });
    from.deallocate(a_, p, chunk);
    return p;
  }

  gpumem::stream a_{gpumem::device{0}}, b_{gpumem::device{0}};
  bool ran_ = false;
};

using sources = testing::Types<gpumem::cuda_resource, gpumem::managed_resource, gpumem::pinned_resource,
                               gpumem::host_resource, gpumem::async_resource, gpumem::async_resource_view,
                               gpumem::async_managed_resource, gpumem::async_pinned_resource>;
TYPED_TEST_SUITE(pool_over, sources);

// The chunk is valid in the order of the stream for which it was allocated.
TYPED_TEST(pool_over, new_memory_is_ordered_for_another_stream) {
  gpumem::pool_resource pool{TypeParam{}, {.limit = chunk}};
  simulator::checked checked{pool};
  void* const p = checked.allocate(this->a_, chunk / 2);
  void* const q = checked.allocate(this->b_, chunk / 2); // out of the chunk that was allocated for the other stream
  simulator::work(this->a_, {simulator::write(p, chunk / 2)});
  simulator::work(this->b_, {simulator::write(q, chunk / 2)});
  checked.deallocate(this->a_, p, chunk / 2);
  checked.deallocate(this->b_, q, chunk / 2);
}

// No work uses host-accessible memory any more when it is granted.
TYPED_TEST(pool_over, host_accessible_memory_is_reused_after_the_host_has_seen_completion) {
  gpumem::pool_resource pool{TypeParam{}, {.limit = chunk}};
  simulator::checked checked{pool};
  void* const p = this->freed_in_use(checked);
  void* const q = checked.allocate(this->b_, chunk);
  EXPECT_EQ(q, p);
  if constexpr (gpumem::mr::has_property<TypeParam, gpumem::mr::host_accessible>) EXPECT_TRUE(this->ran_);
  simulator::work(this->b_, {simulator::write(q, chunk)});
  checked.deallocate(this->b_, q, chunk);
}

TYPED_TEST(pool_over, request_of_the_host_is_granted_after_it_has_seen_completion) {
  gpumem::pool_resource pool{TypeParam{}, {.limit = chunk}};
  simulator::checked checked{pool};
  void* const p = this->freed_in_use(checked);
  void* const q = checked.allocate_sync(chunk);
  EXPECT_EQ(q, p);
  EXPECT_TRUE(this->ran_);
  simulator::work(this->b_, {simulator::write(q, chunk)});
  this->b_.synchronize();
  checked.deallocate_sync(q, chunk);
}

// The chunk is freed after all its uses, including those on other streams than the one for which it was allocated.
TYPED_TEST(pool_over, chunks_go_back_after_their_uses) {
  gpumem::pool_resource pool{TypeParam{}};
  simulator::checked checked{pool};
  this->freed_in_use(checked);
  void* const q = checked.allocate(this->b_, chunk / 4);
  simulator::work(this->b_, {simulator::write(q, chunk / 4)}, 50us);
  checked.deallocate(this->b_, q, chunk / 4);
  this->a_.synchronize();
  this->b_.synchronize();
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved, 0u);
}

} // namespace
