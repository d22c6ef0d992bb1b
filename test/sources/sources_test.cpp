// Behavior that differs between sources: waits before a free, captures, loss of the device, misuse, statistics.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>

import gpumem;
#include "recorded_misuse.hpp"

namespace {

namespace simulator = gpumem::simulator;
using test::recorded_misuse;
using test::seen;
using namespace std::chrono_literals;

constexpr std::size_t mib = std::size_t{1024} * 1024;

template <class Source> class source : public simulated {
protected:
  /// Enqueues work that uses the block; it has not run when this returns.
  void use(CUstream on, void* p) {
    ran_ = false;
    simulator::work(gpumem::stream_ref{on}, {simulator::write(p, mib)}, 50us, [this] { ran_ = true; });
  }
  Source subject_;
  bool ran_ = false;
};

using sources = testing::Types<gpumem::cuda_resource, gpumem::host_resource, gpumem::managed_resource,
                               gpumem::pinned_resource, gpumem::system_resource>;
TYPED_TEST_SUITE(source, sources);

TYPED_TEST(source, free_waits_for_an_own_stream) {
  gpumem::stream stream{gpumem::device{0}};
  void* const p = this->subject_.allocate(stream, mib);
  this->use(stream.get(), p);
  auto const waits = gpumem::driver_api::driver_calls("cuCtxSynchronize");
  this->subject_.deallocate(stream, p, mib);
  EXPECT_TRUE(this->ran_);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuCtxSynchronize"), waits) << "only its own stream is waited for";
}

TYPED_TEST(source, block_destructor_waits_for_its_foreign_stream_only) {
  CUstream foreign = nullptr;
  gpumem::device_guard const scope{gpumem::device{0}};
  ASSERT_EQ(gpumem::driver_api::driver().stream_create(&foreign, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  auto const waits = gpumem::driver_api::driver_calls("cuStreamSynchronize");
  {
    auto block = this->subject_.acquire(gpumem::stream_ref{foreign}, mib).wait();
    this->use(foreign, block.data());
  }
  EXPECT_TRUE(this->ran_);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamSynchronize"), waits + 1);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuCtxSynchronize"), 0u);
  EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(foreign), CUDA_SUCCESS);
}

TYPED_TEST(source, free_by_the_host_waits_for_no_stream) {
  void* const p = this->subject_.allocate_sync(mib);
  auto const calls =
      gpumem::driver_api::driver_calls("cuStreamSynchronize") + gpumem::driver_api::driver_calls("cuCtxSynchronize");
  this->subject_.deallocate_sync(p, mib);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamSynchronize") +
                gpumem::driver_api::driver_calls("cuCtxSynchronize"),
            calls);
}

TYPED_TEST(source, capturing_stream_is_refused_and_its_frees_are_deferred) {
  gpumem::stream captured{gpumem::device{0}}, other{gpumem::device{0}};
  void* const p = this->subject_.allocate(captured, mib);
  auto const before = this->subject_.statistics();
  captured.begin_capture();
  EXPECT_EQ(this->subject_.try_allocate(captured, mib).error().reason, gpumem::outcome::capture_unsupported);
  this->subject_.deallocate(captured, p, mib);
  EXPECT_EQ(this->subject_.statistics().live, before.live - mib);
  EXPECT_EQ(this->subject_.statistics().reserved, before.reserved) << "freed inside the capture";
  {
    recorded_misuse const scope;
    this->subject_.deallocate(captured, p, mib);
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].what, gpumem::misuse::kind::double_free);
  }
  auto* const graph = captured.end_capture();
  EXPECT_NE(graph, nullptr) << "the capture was broken";
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(graph), CUDA_SUCCESS);
  void* const q = this->subject_.allocate(other, mib);
  EXPECT_EQ(this->subject_.statistics().reserved, before.reserved) << "not served by the next call";
  this->subject_.deallocate(other, q, mib);
}

TYPED_TEST(source, misuse_is_reported_and_ignored) {
  recorded_misuse const scope;
  gpumem::stream stream{gpumem::device{0}};
  void* const p = this->subject_.allocate(stream, mib);
  auto const before = this->subject_.statistics();
  int elsewhere = 0;
  this->subject_.deallocate(stream, &elsewhere, sizeof elsewhere);
  this->subject_.deallocate(stream, p, mib + 1);
  EXPECT_EQ(this->subject_.statistics().live, before.live);
  this->subject_.deallocate(stream, p, mib, 16); // an alignment other than the allocation's is no misuse
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(seen[0].pointer, &elsewhere);
  EXPECT_EQ(seen[0].stream, stream.key().identity().id());
  EXPECT_EQ(seen[1].what, gpumem::misuse::kind::wrong_size);
  EXPECT_EQ(seen[1].given, mib + 1);
  EXPECT_EQ(seen[1].expected, mib);
}

TYPED_TEST(source, statistics_count_allocations_and_frees) {
  auto const before = this->subject_.statistics();
  void* const p = this->subject_.allocate_sync(3 * mib, 1024);
  EXPECT_THROW((void)this->subject_.allocate_sync(std::size_t{1} << 50), gpumem::out_of_memory);
  auto const with = this->subject_.statistics();
  EXPECT_EQ(with.live, before.live + 3 * mib);
  EXPECT_GE(with.reserved, before.reserved + 3 * mib);
  EXPECT_GE(with.peak_live, with.live);
  EXPECT_GE(with.peak_reserved, with.reserved);
  this->subject_.deallocate_sync(p, 3 * mib, 1024);
  auto const after = this->subject_.statistics();
  EXPECT_EQ(after.live, before.live);
  EXPECT_EQ(after.reserved, before.reserved);
  EXPECT_EQ(after.allocations, before.allocations + 1);
  EXPECT_EQ(after.frees, before.frees + 1);
  EXPECT_EQ(after.failures, before.failures + 1);
}

class cuda_resource : public simulated {};

TEST_F(cuda_resource, driver_error_is_reported_with_its_code) {
  gpumem::cuda_resource subject;
  gpumem::stream stream{gpumem::device{0}};
  simulator::fail_allocation(1);
  auto const got = subject.try_allocate(stream, mib);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error(), (gpumem::failure{gpumem::outcome::exhausted, CUDA_ERROR_OUT_OF_MEMORY, mib}));
  simulator::fail_call("cuMemAlloc", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(subject.try_allocate(stream, mib).error().reason, gpumem::outcome::driver_error);
  simulator::fail_allocation(1);
  try {
    (void)subject.allocate(stream, mib);
    FAIL() << "memory was given";
  } catch (gpumem::out_of_memory const& e) {
    EXPECT_EQ(e.info().requested, mib);
    EXPECT_EQ(e.info().device, 0);
    EXPECT_GT(e.info().device_total, 0u);
    EXPECT_EQ(e.info().stream, stream.key().identity().id());
  }
}

TEST_F(cuda_resource, memory_belongs_to_its_device_whichever_is_current) {
  gpumem::device_guard const scope{gpumem::device{0}};
  gpumem::cuda_resource second{gpumem::device{1}};
  EXPECT_FALSE(second == gpumem::cuda_resource{});
  EXPECT_EQ(second.device().ordinal(), 1);
  gpumem::stream stream{gpumem::device{1}};
  auto const free = gpumem::device{1}.memory().free;
  void* const p = second.allocate(stream, mib);
  EXPECT_LE(gpumem::device{1}.memory().free, free - mib);
  second.deallocate(stream, p, mib);
  EXPECT_EQ(gpumem::device{1}.memory().free, free);
  EXPECT_EQ(gpumem::device::current().ordinal(), 0);
  EXPECT_THROW((void)second.allocate(gpumem::stream_ref{cudaStream_t{}}, mib), std::invalid_argument);
  EXPECT_THROW(gpumem::cuda_resource{gpumem::device{2}}, std::invalid_argument);
}

TEST_F(cuda_resource, aligned_block_is_freed_at_its_original_address) {
  gpumem::cuda_resource subject;
  auto const held = device_bytes();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(subject.allocate_sync(mib, 4 * mib));
  for (auto* const p : blocks) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % (4 * mib), 0u);
    subject.deallocate_sync(p, mib, 4 * mib);
  }
  EXPECT_EQ(device_bytes(), held);
}

template <class Source> class host_memory : public simulated {};

using host_sources = testing::Types<gpumem::managed_resource, gpumem::pinned_resource>;
TYPED_TEST_SUITE(host_memory, host_sources);

TYPED_TEST(host_memory, host_and_device_can_use_it) {
  static_assert(gpumem::mr::has_property<TypeParam, gpumem::mr::host_accessible>);
  static_assert(gpumem::mr::has_property<TypeParam, gpumem::mr::device_accessible>);
  static_assert(!TypeParam::stream_ordered);
  TypeParam subject{gpumem::device{1}};
  EXPECT_EQ(subject.device().ordinal(), 1);
  EXPECT_FALSE(subject == TypeParam{});
  gpumem::stream stream{gpumem::device{1}};
  auto* const p = static_cast<int*>(subject.allocate(stream, sizeof(int)));
  auto const address = reinterpret_cast<CUdeviceptr>(p);
  EXPECT_EQ(gpumem::driver_api::driver().memset_d32_async(address, 7, 1, stream.get()), CUDA_SUCCESS);
  stream.synchronize();
  EXPECT_EQ(*p, 7);
  subject.deallocate(stream, p, sizeof(int));
  EXPECT_THROW(TypeParam{gpumem::device{2}}, std::invalid_argument);
}

TYPED_TEST(host_memory, driver_error_is_reported_with_its_code) {
  TypeParam subject;
  gpumem::stream stream{gpumem::device{0}};
  simulator::fail_allocation(1);
  auto const got = subject.try_allocate(stream, mib);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error(), (gpumem::failure{gpumem::outcome::exhausted, CUDA_ERROR_OUT_OF_MEMORY, mib}));
}

class kinds_of_memory : public simulated {};

TEST_F(kinds_of_memory, managed_and_pinned_resources_use_their_driver_calls) {
  gpumem::device_guard const current{gpumem::device{0}};
  gpumem::managed_resource managed;
  gpumem::pinned_resource pinned;
  void* const p = managed.allocate_sync(mib);
  void* const q = pinned.allocate_sync(mib);
  EXPECT_EQ(gpumem::driver_api::driver().mem_free_host(p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(gpumem::driver_api::driver().mem_free(reinterpret_cast<CUdeviceptr>(q)), CUDA_ERROR_INVALID_VALUE);
  managed.deallocate_sync(p, mib);
  pinned.deallocate_sync(q, mib);
}

class host_resource : public simulated {};

TEST_F(host_resource, memory_is_accessible_to_the_host_only) {
  static_assert(gpumem::mr::has_property<gpumem::host_resource, gpumem::mr::host_accessible>);
  static_assert(!gpumem::mr::has_property<gpumem::host_resource, gpumem::mr::device_accessible>);
  gpumem::host_resource subject;
  EXPECT_FALSE(subject.device().has_value());
  auto* const p = static_cast<int*>(subject.allocate_sync(sizeof(int)));
  *p = 7;
  EXPECT_EQ(*p, 7);
  subject.deallocate_sync(p, sizeof(int));
}

TEST_F(host_resource, default_stream_belongs_to_the_current_device) {
  gpumem::device_guard const scope{gpumem::device{1}};
  gpumem::host_resource subject;
  void* const p = subject.allocate(gpumem::stream_ref{cudaStream_t{}}, mib);
  subject.deallocate(gpumem::stream_ref{cudaStream_t{}}, p, mib);
}

} // namespace
