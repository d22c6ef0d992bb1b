// Stream capture on the simulated device: what it records, and what invalidates it.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

class capture : public simulated_device {
protected:
  CUstream begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL, unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream const s = new_stream(flags);
    EXPECT_EQ(cu().begin_capture(s, mode), CUDA_SUCCESS);
    return s;
  }
  CUresult end(CUstream s) {
    graph_ = nullptr;
    return cu().end_capture(s, &graph_);
  }
  CUstreamCaptureStatus status(CUstream s) {
    CUstreamCaptureStatus told = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cu().is_capturing(s, &told), CUDA_SUCCESS);
    return told;
  }
  CUgraph graph_ = nullptr;
};

TEST_F(capture, captured_work_is_replayed) {
  int ran = 0;
  CUstream const s = begin();
  simulator::work(s, {}, 1us, [&] { ++ran; });
  simulator::work(s, {}, 1us, [&] { ran *= 10; });
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_EQ(ran, 0);
  ASSERT_EQ(end(s), CUDA_SUCCESS);
  std::size_t nodes = 0;
  EXPECT_EQ(cu().graph_nodes(graph_, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 2u);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cu().instantiate(&executable, graph_, 0), CUDA_SUCCESS);
  cu().launch_graph(executable, s);
  cu().launch_graph(executable, s);
  cu().stream_synchronize(s);
  EXPECT_EQ(ran, 110);
}

TEST_F(capture, queries_and_waits_invalidate_a_capture) {
  char* memory = new_memory(8);
  CUstream const s = begin();
  EXPECT_EQ(cu().stream_query(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cu().fill_async(address(memory), 0, 8, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph_, nullptr);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(capture, questions_about_a_capturing_stream_invalidate_its_capture) {
  for (auto const mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    for (int question = 0; question < 3; ++question) {
      CUstream const s = begin(mode);
      unsigned long long id = 0;
      unsigned flags = 0;
      CUdevice device = 0;
      CUresult const answer = question == 0   ? cu().stream_id(s, &id)
                              : question == 1 ? cu().stream_flags(s, &flags)
                                              : cu().stream_device(s, &device);
      EXPECT_EQ(answer, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    CUstream const s = begin(mode);
    CUcontext context = nullptr;
    int priority = 0;
    EXPECT_EQ(cu().stream_context(s, &context), CUDA_SUCCESS);
    EXPECT_EQ(cu().stream_priority(s, &priority), CUDA_SUCCESS);
    EXPECT_EQ(end(s), CUDA_SUCCESS);
  }
}

TEST_F(capture, event_of_a_capture_cannot_be_queried) {
  CUevent const e = new_event();
  CUstream const s = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cu().event_record(e, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().event_query(e), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture, capture_spreads_over_events_and_must_be_joined) {
  CUevent const fork = new_event();
  CUevent const join = new_event();
  CUstream const other = new_stream();
  CUstream s = begin();
  cu().event_record(fork, s);
  EXPECT_EQ(cu().stream_wait(other, fork, 0), CUDA_SUCCESS);
  EXPECT_EQ(status(other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  simulator::work(other, {}, 1us);
  EXPECT_EQ(end(other), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  s = begin();
  cu().event_record(fork, s);
  cu().stream_wait(other, fork, 0);
  simulator::work(other, {}, 1us);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(status(other), CU_STREAM_CAPTURE_STATUS_NONE);

  s = begin();
  cu().event_record(fork, s);
  cu().stream_wait(other, fork, 0);
  simulator::work(other, {}, 1us);
  cu().event_record(join, other);
  EXPECT_EQ(cu().stream_wait(s, join, 0), CUDA_SUCCESS);
  EXPECT_EQ(end(s), CUDA_SUCCESS);
}

TEST_F(capture, captured_stream_cannot_wait_for_an_event_outside) {
  CUevent const outside = new_event();
  cu().event_record(outside, new_stream());
  CUstream const s = begin();
  EXPECT_EQ(cu().stream_wait(s, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture, legacy_stream_invalidates_the_capture_of_a_blocking_stream) {
  CUstream const s = begin(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_DEFAULT);
  char* memory = new_memory(8);
  EXPECT_EQ(cu().fill_async(address(memory), 0, 8, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUstream const free = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cu().fill_async(address(memory), 0, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(end(free), CUDA_SUCCESS);
}

TEST_F(capture, global_mode_forbids_unsafe_calls_of_every_thread) {
  CUstream const s = begin();
  CUdeviceptr memory = 0;
  std::thread([&] {
    cu().set_current(context_);
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    cu().exchange_mode(&relaxed);
    EXPECT_EQ(relaxed, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(cu().allocate(&memory, 64), CUDA_SUCCESS);
    cu().exchange_mode(&relaxed);
    EXPECT_EQ(cu().allocate(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }).join();
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture, thread_local_mode_forbids_unsafe_calls_of_its_thread_only) {
  CUstream const s = begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUdeviceptr memory = 0;
  std::thread([&] {
    cu().set_current(context_);
    EXPECT_EQ(cu().allocate(&memory, 64), CUDA_SUCCESS);
    EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cu().allocate(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture, context_event_invalidates_a_capture) {
  CUstream const s = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cu().context_record(context_, new_event()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// As driver 580 does.
TEST_F(capture, wait_for_the_context_invalidates_captures_of_any_mode) {
  for (auto const mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    char* memory = new_memory(8);
    CUstream const s = begin(mode);
    std::thread([&] {
      cu().set_current(context_);
      CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
      cu().exchange_mode(&relaxed);
      EXPECT_EQ(cu().context_synchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }).join();
    EXPECT_EQ(cu().fill_async(address(memory), 0, 8, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  EXPECT_EQ(cu().context_synchronize(), CUDA_SUCCESS);
}

TEST_F(capture, capture_of_the_legacy_stream_is_refused) {
  EXPECT_EQ(cu().begin_capture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUstream const s = new_stream();
  EXPECT_EQ(end(s), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(capture, capture_has_a_number) {
  CUstream const first = begin();
  CUstreamCaptureStatus told = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t one = 0;
  cuuint64_t two = 0;
  EXPECT_EQ(cu().capture_info(first, &told, &one, nullptr, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(told, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  end(first);
  CUstream const second = begin();
  cu().capture_info(second, &told, &two, nullptr, nullptr, nullptr, nullptr);
  EXPECT_NE(one, two);
  end(second);
}

TEST_F(capture, query_of_the_legacy_stream_does_not_invalidate_a_capture) {
  CUstream const s = begin(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_DEFAULT);
  CUstreamCaptureStatus told = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(cu().is_capturing(CU_STREAM_LEGACY, &told), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(end(s), CUDA_SUCCESS);
  EXPECT_EQ(cu().is_capturing(CU_STREAM_LEGACY, &told), CUDA_SUCCESS);
  EXPECT_EQ(told, CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(capture, nodes_in_no_order_that_touch_the_same_bytes_are_found) {
  char* memory = new_memory(128);
  CUevent const fork = new_event();
  CUevent const join = new_event();
  CUstream const other = new_stream();
  CUstream const s = begin();
  cu().event_record(fork, s);
  cu().stream_wait(other, fork, 0);
  simulator::work(s, {simulator::write(memory, 64)});
  simulator::work(other, {simulator::read(memory + 63, 2)});
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, simulator::finding_kind::unordered_access);
  EXPECT_EQ(found[0].block_address, address(memory + 63));
  simulator::work(other, {simulator::write(memory + 64, 64)});
  simulator::work(s, {simulator::read(memory, 64)});
  cu().event_record(join, other);
  cu().stream_wait(s, join, 0);
  simulator::work(s, {simulator::write(memory, 128)}); // ordered after both
  EXPECT_EQ(end(s), CUDA_SUCCESS);
}

TEST_F(capture, calls_for_pools_and_addresses_are_unsafe) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cu().default_pool(&pool, 0), CUDA_SUCCESS);
  cuuint64_t value = 0;
  CUdeviceptr reserved = 0;
  auto const all_fail_with = [&](CUresult expected) {
    EXPECT_EQ(cu().pool_get(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value), expected);
    EXPECT_EQ(cu().pool_trim(pool, 0), expected);
    EXPECT_EQ(cu().reserve_addresses(&reserved, 2 << 20, 0, 0, 0), expected);
    if (expected == CUDA_SUCCESS) EXPECT_EQ(cu().free_addresses(reserved, 2 << 20), expected);
  };
  CUstream s = begin();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  cu().exchange_mode(&mode);
  all_fail_with(CUDA_SUCCESS);
  cu().exchange_mode(&mode);
  EXPECT_EQ(end(s), CUDA_SUCCESS);
  s = begin();
  all_fail_with(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

} // namespace
