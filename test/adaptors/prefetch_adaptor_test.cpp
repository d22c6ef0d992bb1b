// prefetch and prefetch_adaptor: which memory is moved, where, and what a refusal leaves behind.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using gpumem::memory_location;
using gpumem_test::driver_function;

constexpr std::size_t mib = std::size_t{1024} * 1024;
constexpr int nowhere = CU_DEVICE_INVALID;
constexpr int on_host = CU_DEVICE_CPU;

class prefetch : public simulated {
protected:
  /// Returns the device, or the host, to which the memory was last prefetched.
  static int place_of(void* p, std::size_t bytes) {
    int where = -3;
    auto* const ask = driver_function<decltype(cuMemRangeGetAttribute)>("cuMemRangeGetAttribute");
    auto const at = reinterpret_cast<CUdeviceptr>(p);
    EXPECT_EQ(ask(&where, sizeof where, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, bytes), CUDA_SUCCESS);
    return where;
  }
  static auto calls() { return gpumem::driver_api::driver_calls("cuMemPrefetchAsync"); }

  gpumem::device first_{0}, second_{1};
  gpumem::managed_resource managed_{first_};
  gpumem::stream s_{first_};
};

TEST_F(prefetch, managed_memory_goes_to_the_location) {
  void* const p = managed_.allocate(s_, mib);
  EXPECT_TRUE(gpumem::prefetch(p, mib, second_, s_));
  EXPECT_EQ(place_of(p, mib), 1);
  EXPECT_TRUE(gpumem::prefetch(p, mib, memory_location::host(), s_));
  EXPECT_EQ(place_of(p, mib), on_host);
  EXPECT_TRUE(gpumem::prefetch(gpumem::span<int>{static_cast<int*>(p), 64}, first_, s_));
  EXPECT_EQ(place_of(p, 256), 0);
  EXPECT_EQ(place_of(p, 257), nowhere) << "more than the span was moved";
  managed_.deallocate(s_, p, mib);
}

TEST_F(prefetch, it_is_enqueued_on_the_stream_and_does_not_wait) {
  void* const p = managed_.allocate(s_, mib);
  bool ran = false;
  simulator::work(s_, {simulator::write(p, mib)}, {}, [&] { ran = true; });
  auto const waits = gpumem::driver_api::driver_calls("cuStreamSynchronize");
  EXPECT_TRUE(gpumem::prefetch(p, mib, first_, s_));
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamSynchronize"), waits);
  managed_.deallocate(s_, p, mib);
  EXPECT_TRUE(ran);
}

TEST_F(prefetch, memory_that_is_not_managed_is_refused_and_leaves_no_error) {
  gpumem::cuda_resource plain;
  gpumem::pinned_resource pinned;
  void* const p = plain.allocate(s_, mib);
  void* const q = pinned.allocate(s_, mib);
  EXPECT_FALSE(gpumem::prefetch(p, mib, first_, s_));
  EXPECT_FALSE(gpumem::prefetch(q, mib, first_, s_));
  int const elsewhere = 0;
  EXPECT_FALSE(gpumem::prefetch(&elsewhere, sizeof elsewhere, first_, s_));
  EXPECT_NO_THROW(s_.synchronize());
  EXPECT_FALSE(first_.lost());
  void* const m = managed_.allocate(s_, mib);
  EXPECT_FALSE(gpumem::prefetch(m, mib + 1, first_, s_)) << "beyond the end of the block";
  EXPECT_TRUE(gpumem::prefetch(m, mib, first_, s_)) << "the refusal before was left behind";
  managed_.deallocate(s_, m, mib);
  pinned.deallocate(s_, q, mib);
  plain.deallocate(s_, p, mib);
}

TEST_F(prefetch, device_without_concurrent_access_is_a_refusal_and_other_errors_are_thrown) {
  void* const p = managed_.allocate(s_, mib);
  for (auto const refusal : {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_SUPPORTED}) {
    simulator::fail_call("cuMemPrefetchAsync", 1, refusal);
    EXPECT_FALSE(gpumem::prefetch(p, mib, first_, s_));
  }
  simulator::fail_call("cuMemPrefetchAsync", 1, CUDA_ERROR_NOT_PERMITTED);
  try {
    gpumem::prefetch(p, mib, first_, s_);
    ADD_FAILURE() << "the error is lost";
  } catch (gpumem::cuda_error const& e) { EXPECT_EQ(static_cast<int>(e.status()), CUDA_ERROR_NOT_PERMITTED); }
  EXPECT_TRUE(gpumem::prefetch(p, mib, first_, s_)) << "an error was left behind";
  managed_.deallocate(s_, p, mib);
}

TEST_F(prefetch, zero_bytes_make_no_driver_call) {
  auto const before = calls();
  EXPECT_FALSE(gpumem::prefetch(nullptr, 0, first_, s_));
  EXPECT_FALSE(gpumem::prefetch(gpumem::span<int>{}, first_, s_));
  EXPECT_EQ(calls(), before);
}

TEST_F(prefetch, capture_is_refused_and_goes_on) {
  void* const p = managed_.allocate_sync(mib);
  CUstream foreign = nullptr;
  gpumem::device_guard const scope{first_};
  ASSERT_EQ(gpumem::driver_api::driver().stream_create(&foreign, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (CUstream const on : {s_.get(), foreign}) { // begun on the raw handles, so that gpumem has to ask
    ASSERT_EQ(gpumem::driver_api::driver().stream_begin_capture(on, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    try {
      gpumem::prefetch(p, mib, first_, gpumem::stream_ref{on});
      ADD_FAILURE() << "prefetched inside a capture";
    } catch (gpumem::cuda_error const& e) {
      EXPECT_EQ(static_cast<int>(e.status()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    CUgraph graph = nullptr;
    EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(on, &graph), CUDA_SUCCESS) << "the capture was broken";
    EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(graph), CUDA_SUCCESS);
  }
  EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(foreign), CUDA_SUCCESS);
  managed_.deallocate_sync(p, mib);
}

TEST_F(prefetch, default_streams_can_be_used) {
  void* const p = managed_.allocate_sync(mib);
  gpumem::device_guard const scope{first_};
  for (CUstream const on : {CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    EXPECT_TRUE(gpumem::prefetch(p, mib, first_, gpumem::stream_ref{on}));
    EXPECT_EQ(gpumem::driver_api::driver().stream_synchronize(on), CUDA_SUCCESS);
  }
  managed_.deallocate_sync(p, mib);
}

TEST_F(prefetch, locations_compare) {
  EXPECT_TRUE(memory_location{first_} == memory_location{gpumem::device{0}});
  EXPECT_FALSE(memory_location{first_} == memory_location{second_});
  EXPECT_FALSE(memory_location{first_} == memory_location::host());
  EXPECT_TRUE(memory_location::host().is_host());
  EXPECT_EQ(memory_location{second_}.ordinal(), 1);
}

class prefetch_adaptor : public prefetch {};

TEST_F(prefetch_adaptor, blocks_go_to_the_device_of_the_upstream) {
  gpumem::prefetch_adaptor subject{gpumem::managed_resource{second_}};
  gpumem::stream on{second_};
  void* const p = subject.allocate(on, mib);
  EXPECT_EQ(place_of(p, mib), 1);
  EXPECT_EQ(subject.prefetches(), 1u);
  EXPECT_EQ(subject.refused(), 0u);
  subject.deallocate(on, p, mib);
}

TEST_F(prefetch_adaptor, blocks_go_to_the_location_of_the_options) {
  gpumem::prefetch_adaptor to_host{managed_, {.location = memory_location::host()}};
  gpumem::prefetch_adaptor to_second{managed_, {.location = second_}};
  void* const p = to_host.allocate(s_, mib);
  void* const q = to_second.allocate(s_, mib, 1 << 16);
  EXPECT_EQ(place_of(p, mib), on_host);
  EXPECT_EQ(place_of(q, mib), 1);
  to_host.deallocate(s_, p, mib);
  to_second.deallocate(s_, q, mib, 1 << 16);
}

TEST_F(prefetch_adaptor, sync_forms_prefetch_on_a_stream_of_the_adaptor) {
  gpumem::prefetch_adaptor subject{managed_};
  void* const p = subject.allocate_sync(mib);
  EXPECT_EQ(place_of(p, mib), 0);
  EXPECT_EQ(subject.prefetches(), 1u);
  subject.deallocate_sync(p, mib);
  EXPECT_EQ(subject.allocate_sync(0), nullptr);
  EXPECT_EQ(subject.allocate(s_, 0), nullptr);
  EXPECT_EQ(subject.prefetches() + subject.refused(), 1u);
}

TEST_F(prefetch_adaptor, refusal_does_not_fail_the_allocation) {
  gpumem::prefetch_adaptor subject{gpumem::cuda_resource{}};
  void* const p = subject.allocate(s_, mib);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(subject.refused(), 1u);
  EXPECT_EQ(subject.prefetches(), 0u);
  subject.deallocate(s_, p, mib);
  gpumem::prefetch_adaptor managed{managed_};
  simulator::fail_call("cuMemPrefetchAsync", 1, CUDA_ERROR_NOT_PERMITTED);
  void* const q = managed.allocate(s_, mib);
  EXPECT_EQ(managed.refused(), 1u);
  EXPECT_EQ(place_of(q, mib), nowhere);
  managed.deallocate(s_, q, mib);
}

TEST_F(prefetch_adaptor, failed_allocation_is_not_prefetched) {
  gpumem::prefetch_adaptor subject{managed_};
  auto const before = calls();
  EXPECT_THROW((void)subject.allocate(s_, std::size_t{1} << 50), gpumem::out_of_memory);
  EXPECT_EQ(calls(), before);
}

TEST_F(prefetch_adaptor, host_memory_needs_a_location) {
  try {
    gpumem::prefetch_adaptor subject{gpumem::host_resource{}};
    ADD_FAILURE() << "made without a location";
  } catch (std::invalid_argument const& e) { EXPECT_NE(std::string{e.what()}.find("`location`"), std::string::npos); }
  gpumem::prefetch_adaptor subject{gpumem::host_resource{}, {.location = second_}};
  subject.deallocate_sync(subject.allocate_sync(8), 8);
  EXPECT_EQ(subject.refused(), 1u);
}

TEST_F(prefetch_adaptor, capturing_stream_never_gets_there) {
  gpumem::prefetch_adaptor subject{managed_};
  auto const before = calls();
  s_.begin_capture();
  EXPECT_EQ(subject.try_allocate(s_, mib).error().reason, gpumem::outcome::capture_unsupported);
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(s_.end_capture()), CUDA_SUCCESS);
  EXPECT_EQ(calls(), before);
}

TEST_F(prefetch_adaptor, request_that_waited_is_prefetched) {
  gpumem::prefetch_adaptor subject{gpumem::limiting_adaptor{managed_, {.limit = mib}}};
  auto first = subject.acquire(s_, mib).wait();
  std::optional<gpumem::allocation> second;
  std::thread later{[&] {
    gpumem::stream mine{second_};
    second = subject.acquire(mine, mib).wait();
    mine.synchronize();
    EXPECT_EQ(place_of(second->data(), mib), 0);
    second.reset();
  }};
  while (subject.statistics().waiting == 0) std::this_thread::yield();
  EXPECT_EQ(subject.prefetches(), 1u);
  first.reset();
  later.join();
  EXPECT_EQ(subject.prefetches(), 2u);
}

TEST_F(prefetch_adaptor, it_forwards_what_the_upstream_supports) {
  gpumem::prefetch_adaptor subject{gpumem::pool_resource{managed_}};
  static_assert(gpumem::mr::has_property<decltype(subject), gpumem::mr::host_accessible>);
  void* const p = subject.allocate(s_, mib);
  EXPECT_EQ(subject.statistics().live, mib);
  subject.deallocate(s_, p);
  s_.synchronize();
  EXPECT_GT(subject.trim(), 0u);
  gpumem::any_pool erased{gpumem::prefetch_adaptor{gpumem::any_pool{managed_}}};
  void* const q = erased.allocate(s_, mib, 256);
  EXPECT_EQ(place_of(q, mib), 0);
  erased.deallocate(s_, q, mib, 256);
  auto copy = subject;
  EXPECT_TRUE(copy == subject);
}

TEST_F(prefetch_adaptor, block_keeps_the_adaptor) {
  std::optional<gpumem::prefetch_adaptor<gpumem::managed_resource>> subject{std::in_place, managed_};
  auto block = subject->acquire(s_, mib).wait();
  subject.reset();
  EXPECT_EQ(place_of(block.data(), mib), 0);
}

TEST_F(prefetch_adaptor, counts_are_exact_with_many_threads) {
  gpumem::prefetch_adaptor subject{managed_};
  std::vector<std::thread> team;
  for (int i = 0; i < 4; ++i) {
    team.emplace_back([subject]() mutable {
      gpumem::stream mine{gpumem::device{0}};
      for (int n = 0; n < 50; ++n) subject.deallocate(mine, subject.allocate(mine, 4096), 4096);
    });
  }
  for (auto& each : team) each.join();
  EXPECT_EQ(subject.prefetches(), 200u);
}

} // namespace
