// Stream order of the driver's pools: every kind of stream, frees by stream identity, captures, host-accessible memory.
// SPDX-License-Identifier: Apache-2.0
#include "streams_of_all_kinds.hpp"

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>

namespace {

namespace simulator = gpumem::simulator;

constexpr std::size_t segment = 32 * mib; // the minimum that the simulated driver reserves

std::uint64_t host_waits() {
  return gpumem::driver_api::driver_calls("cuStreamSynchronize") + gpumem::driver_api::driver_calls("cuCtxSynchronize");
}

class async_order : public streams_of_all_kinds {};

TEST_F(async_order, calls_in_stream_order_do_not_wait_for_the_device) {
  gpumem::async_resource pool;
  auto const waits = host_waits();
  for (auto const on : {gpumem::stream_ref{own_}, foreign(), gpumem::stream_ref{cudaStream_t{}},
                        gpumem::stream_ref{CU_STREAM_LEGACY}, gpumem::stream_ref{CU_STREAM_PER_THREAD}}) {
    void* const p = pool.allocate(on, mib);
    use(on, p);
    pool.deallocate(on, p, mib);
    void* const q = pool.allocate(on, mib);
    use(on, q);
    pool.deallocate(on, q, mib);
  }
  EXPECT_EQ(host_waits(), waits);
}

TEST_F(async_order, driver_orders_reuse_by_another_stream) {
  gpumem::async_resource pool{gpumem::device{0}, {.limit = segment}};
  void* const p = pool.allocate(own_, segment);
  use(own_, p, segment);
  pool.deallocate(own_, p, segment);
  void* const q = pool.allocate(other_, segment);
  EXPECT_EQ(q, p);
  use(other_, q, segment);
  pool.deallocate(other_, q, segment);
}

TEST_F(async_order, host_can_use_its_memory_at_once) {
  gpumem::async_resource pool{gpumem::device{0}, {.limit = segment}};
  void* const p = pool.allocate(own_, segment);
  use(own_, p, segment);
  pool.deallocate(own_, p, segment);
  void* const q = pool.allocate_sync(segment);
  EXPECT_EQ(q, p);
  EXPECT_TRUE(ran_);
  use(other_, q, segment); // allocated without a stream, so any stream may use it at once
  other_.synchronize();
  auto const waits = host_waits();
  pool.deallocate_sync(q, segment);
  EXPECT_EQ(host_waits(), waits);
}

TEST_F(async_order, memory_is_returned_if_the_wait_of_the_host_fails) {
  gpumem::async_resource pool;
  simulator::fail_call("cuStreamSynchronize", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THROW((void)pool.allocate_sync(mib), gpumem::cuda_error);
  EXPECT_EQ(pool.usage().used, 0u);
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(async_order, block_is_freed_after_its_foreign_stream) {
  gpumem::async_resource pool;
  auto const waits = host_waits();
  auto block = pool.acquire(foreign(), mib).wait();
  auto* const data = block.data();
  use(foreign(), data);
  block.reset();
  EXPECT_EQ(pool.statistics().live, 0u);
  void* const again = pool.allocate(foreign(), mib);
  EXPECT_EQ(again, data);
  pool.deallocate(foreign(), again, mib);
  EXPECT_EQ(host_waits(), waits);
}

TEST_F(async_order, allocation_without_memory_completes_deferred_frees) {
  gpumem::async_resource pool{gpumem::device{0}, {.limit = segment}};
  {
    auto block = pool.acquire(foreign(), segment).wait();
    use(foreign(), block.data(), segment);
  }
  void* const p = pool.allocate(own_, segment);
  own_.synchronize();
  EXPECT_TRUE(ran_) << "the allocation is not ordered after the free";
  EXPECT_EQ(pool.statistics().failures, 0u);
  use(own_, p, segment);
  pool.deallocate(own_, p, segment);
}

TEST_F(async_order, frees_by_the_key_of_a_default_stream_use_the_legacy_stream) {
  gpumem::async_resource pool;
  auto const waits = host_waits();
  for (auto const on : {cudaStream_t{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    auto block = pool.acquire(gpumem::stream_ref{on}, mib).wait();
    use(gpumem::stream_ref{on}, block.data());
    std::thread{[last = std::move(block)]() mutable { last.reset(); }}.join(); // its default stream is a different one
    EXPECT_EQ(pool.usage().used, 0u);
  }
  EXPECT_EQ(host_waits(), waits);
}

TEST_F(async_order, capturing_stream_is_refused_and_its_frees_are_deferred) {
  gpumem::async_resource pool;
  void* const p = pool.allocate(own_, mib);
  own_.begin_capture();
  EXPECT_EQ(pool.try_allocate(own_, mib).error().reason, gpumem::outcome::capture_unsupported);
  pool.deallocate(own_, p, mib);
  EXPECT_EQ(pool.statistics().live, 0u);
  void* const q = pool.allocate(other_, mib);
  EXPECT_EQ(pool.usage().used, 2 * mib) << "freed inside the capture";
  void* const r = pool.allocate_sync(mib);
  auto* const graph = own_.end_capture();
  EXPECT_NE(graph, nullptr) << "the capture was broken";
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(graph), CUDA_SUCCESS);
  pool.deallocate(other_, q, mib);
  EXPECT_EQ(pool.usage().used, mib) << "not served by the next call";
  pool.deallocate_sync(r, mib);
}

TEST_F(async_order, capture_begun_on_the_raw_handle_is_seen) {
  gpumem::async_resource pool;
  void* const p = pool.allocate(own_, mib);
  ASSERT_EQ(gpumem::driver_api::driver().stream_begin_capture(own_.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(pool.try_allocate(own_, mib).error().reason, gpumem::outcome::capture_unsupported);
  pool.deallocate(own_, p, mib);
  void* const q = pool.allocate_sync(mib);
  pool.deallocate_sync(q, mib);
  CUgraph graph = nullptr;
  EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(own_.get(), &graph), CUDA_SUCCESS)
      << "the capture was broken";
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(graph), CUDA_SUCCESS);
  pool.deallocate(other_, pool.allocate(other_, mib), mib);
  EXPECT_EQ(pool.usage().used, 0u);
}

TEST_F(async_order, default_stream_is_not_used_while_another_captures) {
  gpumem::async_resource pool;
  CUstream blocking = nullptr;
  ASSERT_EQ(gpumem::driver_api::driver().stream_create(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  auto block = pool.acquire(gpumem::stream_ref{CU_STREAM_LEGACY}, mib).wait();
  ASSERT_EQ(gpumem::driver_api::driver().stream_begin_capture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_FALSE(pool.try_allocate(gpumem::stream_ref{CU_STREAM_LEGACY}, mib));
  block.reset();
  CUgraph graph = nullptr;
  EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(blocking, &graph), CUDA_SUCCESS)
      << "the capture was broken";
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(blocking), CUDA_SUCCESS);
  EXPECT_EQ(pool.usage().used, mib);
  pool.deallocate(own_, pool.allocate(own_, mib), mib);
  EXPECT_EQ(pool.usage().used, 0u);
}

/// Pools of host-accessible memory.
template <class Pool> class host_ready_pool : public streams_of_all_kinds {};
using host_pools = testing::Types<gpumem::async_managed_resource, gpumem::async_pinned_resource>;
TYPED_TEST_SUITE(host_ready_pool, host_pools);

TYPED_TEST(host_ready_pool, host_gets_memory_only_after_its_free_is_complete) {
  static_assert(gpumem::mr::has_property<TypeParam, gpumem::mr::host_accessible>);
  static_assert(!TypeParam::stream_ordered);
  TypeParam pool{gpumem::device{0}, {.limit = segment}};
  auto* const p = static_cast<int*>(pool.allocate(this->own_, segment));
  this->use(this->own_, p, segment);
  auto const waits = host_waits();
  pool.deallocate(this->own_, p, segment);
  EXPECT_EQ(host_waits(), waits) << "a free waits for nothing";
  auto* const q = static_cast<int*>(pool.allocate(this->own_, segment));
  EXPECT_EQ(q, p);
  EXPECT_TRUE(this->ran_) << "the host was given memory that work still writes";
  *q = 7;
  this->use(this->other_, q, segment); // any stream may use it at once
  this->other_.synchronize();
  pool.deallocate(this->own_, q, segment);
}

TYPED_TEST(host_ready_pool, block_is_freed_after_its_foreign_stream) {
  TypeParam pool{gpumem::device{0}, {.limit = segment}};
  {
    auto block = pool.acquire(this->foreign(), segment).wait();
    this->use(this->foreign(), block.data(), segment);
  }
  auto* const p = pool.allocate(this->foreign(), segment);
  EXPECT_TRUE(this->ran_) << "the host may touch the memory at once";
  EXPECT_EQ(pool.usage().used, segment);
  pool.deallocate(this->foreign(), p, segment);
}

class async_pinned_resource : public simulated {};

TEST_F(async_pinned_resource, host_node_can_be_chosen) {
  gpumem::async_pinned_resource pool{gpumem::device{0}, {.numa_node = 0}};
  auto* const p = static_cast<int*>(pool.allocate_sync(sizeof(int)));
  *p = 7;
  EXPECT_EQ(*p, 7);
  pool.deallocate_sync(p, sizeof(int));
}

} // namespace
