// The end of the driver's pools: they are destroyed once the host has synchronized with every free. The simulated
// driver reports a pool that is destroyed before that, since drivers crash then.
// SPDX-License-Identifier: Apache-2.0
#include "streams_of_all_kinds.hpp"

#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace {

namespace simulator = gpumem::simulator;

std::uint64_t pools_destroyed() { return gpumem::driver_api::driver_calls("cuMemPoolDestroy"); }

template <class Pool> class pool_end : public streams_of_all_kinds {
protected:
  std::vector<gpumem::stream_ref> all_streams() const {
    return {gpumem::stream_ref{own_}, foreign(), gpumem::stream_ref{cudaStream_t{}},
            gpumem::stream_ref{CU_STREAM_LEGACY}, gpumem::stream_ref{CU_STREAM_PER_THREAD}};
  }
  /// Frees a block on the stream after work that uses it.
  void use_and_free(gpumem::stream_ref on, bool by_identity = false) {
    auto block = pool_->acquire(on, mib).wait();
    use(on, block.data());
    if (by_identity) {
      block.reset();
    } else {
      block.reset(on);
    }
  }
  void expect_end(bool destroyed = true) {
    auto const before = pools_destroyed();
    pool_.reset();
    EXPECT_EQ(pools_destroyed(), before + (destroyed ? 1 : 0));
  }
  CUstream new_stream() const {
    CUstream made = nullptr;
    EXPECT_EQ(gpumem::driver_api::driver().stream_create(&made, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return made;
  }

  std::optional<Pool> pool_{std::in_place};
};
using owned_pools =
    testing::Types<gpumem::async_resource, gpumem::async_managed_resource, gpumem::async_pinned_resource>;
TYPED_TEST_SUITE(pool_end, owned_pools);

TYPED_TEST(pool_end, pool_is_destroyed_after_its_frees_are_complete) {
  for (auto const on : this->all_streams()) {
    for (bool const by_identity : {false, true}) {
      this->pool_.emplace();
      this->use_and_free(on, by_identity);
      this->expect_end();
      EXPECT_TRUE(this->ran_);
    }
  }
}

TYPED_TEST(pool_end, pool_waits_for_frees_that_queries_have_seen_complete) {
  for (auto const on : this->all_streams()) {
    for (bool const by_identity : {false, true}) this->use_and_free(on, by_identity);
    auto block = this->pool_->acquire(on, mib).wait();
    std::thread{[last = std::move(block)]() mutable { last.reset(); }}.join(); // its default stream is a different one
  }
  simulator::run_until_idle();
  EXPECT_EQ(gpumem::driver_api::driver().stream_query(this->own_.get()), CUDA_SUCCESS);
  EXPECT_EQ(gpumem::driver_api::driver().stream_query(this->foreign_), CUDA_SUCCESS);
  EXPECT_EQ(gpumem::driver_api::driver().stream_query(CU_STREAM_LEGACY), CUDA_SUCCESS);
  this->expect_end();
}

using async_end = pool_end<gpumem::async_resource>;

TEST_F(async_end, frees_of_destroyed_streams_are_awaited) {
  for (bool const complete : {true, false, true, false}) {
    auto* const stream = new_stream(); // reuses what gpumem knows of the previous one
    use_and_free(gpumem::stream_ref{stream});
    if (complete) simulator::run_until_idle();
    EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(stream), CUDA_SUCCESS);
  }
  expect_end();
  EXPECT_TRUE(ran_);
}

TEST_F(async_end, frees_of_an_ended_thread_are_awaited) {
  std::thread{[this] { use_and_free(gpumem::stream_ref{CU_STREAM_PER_THREAD}); }}.join();
  use_and_free(gpumem::stream_ref{CU_STREAM_PER_THREAD});
  expect_end();
}

TEST_F(async_end, frees_of_a_stream_that_was_adopted_are_awaited) {
  auto* const stream = new_stream();
  {
    auto const promised = gpumem::stream::adopt(stream);
    use_and_free(promised);
  }
  EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(stream), CUDA_SUCCESS);
  expect_end();
}

TEST_F(async_end, pool_that_cannot_be_waited_for_is_leaked) {
  use_and_free(own_);
  simulator::fail_call("cuStreamSynchronize", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_end(false);
  pool_.emplace();
  use_and_free(foreign());
  simulator::fail_call("cuEventSynchronize", 1, CUDA_ERROR_NOT_SUPPORTED);
  expect_end(false);
}

TEST_F(async_end, pool_whose_stream_captures_is_leaked) {
  use_and_free(own_);
  own_.begin_capture();
  expect_end(false);
  auto* const graph = own_.end_capture();
  EXPECT_NE(graph, nullptr) << "the capture was broken";
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(graph), CUDA_SUCCESS);
}

TEST_F(async_end, pool_with_a_free_that_no_event_covers_is_leaked) {
  void* const p = pool_->allocate(foreign(), mib);
  simulator::fail_call("cuEventRecord", 1, CUDA_ERROR_NOT_SUPPORTED);
  pool_->deallocate(foreign(), p, mib);
  use_and_free(foreign());
  expect_end(false);
}

TEST_F(async_end, failed_record_keeps_no_event_of_an_earlier_owner) {
  auto const& driver = gpumem::driver_api::driver();
  auto* const stream = new_stream();
  void* const p = pool_->allocate(gpumem::stream_ref{stream}, mib);
  own_.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
  gpumem::event{gpumem::device{0}}.record(own_);
  simulator::fail_call("cuEventRecord", 1, CUDA_ERROR_NOT_SUPPORTED);
  pool_->deallocate(gpumem::stream_ref{stream}, p, mib);
  simulator::run_until_idle();
  EXPECT_EQ(driver.stream_destroy(stream), CUDA_SUCCESS);
  auto* const next = new_stream(); // reuses what gpumem knows of the previous one
  use_and_free(gpumem::stream_ref{next});
  EXPECT_EQ(driver.graph_destroy(own_.end_capture()), CUDA_SUCCESS) << "the capture was broken";
  EXPECT_EQ(driver.stream_destroy(next), CUDA_SUCCESS);
  expect_end(false);
}

} // namespace
