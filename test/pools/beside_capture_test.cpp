// Calls of the library while the user captures a stream: the capture stays valid, and the captured work runs.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::pool_resource;
using gpumem::stream_ref;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

// The mode of a capture, and the flags of its stream.
struct begun {
  CUstreamCaptureMode mode;
  unsigned flags;
};

class beside_capture : public gpumem_test::simulated_test, public testing::WithParamInterface<begun> {
protected:
  void SetUp() override {
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&captured_, GetParam().flags),
                              "cuStreamCreate");
    gpumem::driver_api::check(gpumem::driver_api::driver().mem_alloc(&target_, 64), "cuMemAlloc");
  }
  void TearDown() override {
    gpumem::driver_api::driver().stream_destroy(captured_);
    gpumem::driver_api::driver().mem_free(target_);
    simulated_test::TearDown();
  }

  // Runs the calls on another thread while this one captures, then launches the graph.
  void expect_undisturbed(std::function<void()> const& calls) {
    ++value_;
    gpumem::driver_api::check(gpumem::driver_api::driver().memset_d8_async(target_, 0, 64, own_.get()),
                              "cuMemsetD8Async");
    simulator::run_until_idle();
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_begin_capture(captured_, GetParam().mode),
                              "cuStreamBeginCapture");
    EXPECT_EQ(gpumem::driver_api::driver().memset_d8_async(target_, value_, 64, captured_), CUDA_SUCCESS);
    {
      gpumem_test::running_device const running;
      std::thread{[&] {
        gpumem::device_guard const here{device};
        calls();
      }}.join();
    }
    EXPECT_EQ(gpumem::driver_api::driver().memset_d8_async(target_ + 8, value_, 8, captured_), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ASSERT_EQ(gpumem::driver_api::driver().stream_end_capture(captured_, &graph), CUDA_SUCCESS)
        << "the capture was disturbed";
    run(graph);
    unsigned char seen = 0;
    gpumem::driver_api::check(gpumem::driver_api::driver().memcpy_dtoh_async(&seen, target_, 1, own_.get()),
                              "cuMemcpyDtoHAsync");
    simulator::run_until_idle();
    EXPECT_EQ(seen, value_);
    EXPECT_EQ(gpumem::driver_api::driver_calls("cuCtxSynchronize"), 0u);
  }

  static stream_ref make_foreign(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&made, flags), "cuStreamCreate");
    return stream_ref{made};
  }

  gpumem::device device = gpumem::device::current();
  gpumem::stream own_{device}, other_{device};

private:
  void run(CUgraph graph) {
    CUgraphExec executable = nullptr;
    gpumem_test::driver_function<decltype(cuGraphInstantiateWithFlags)>("cuGraphInstantiateWithFlags")(&executable,
                                                                                                       graph, 0);
    gpumem_test::driver_function<decltype(cuGraphLaunch)>("cuGraphLaunch")(executable, own_.get());
    simulator::run_until_idle();
    gpumem_test::driver_function<decltype(cuGraphExecDestroy)>("cuGraphExecDestroy")(executable);
    gpumem::driver_api::driver().graph_destroy(graph);
  }
  CUstream captured_ = nullptr;
  CUdeviceptr target_ = 0;
  unsigned char value_ = 0;
};

TEST_P(beside_capture, pool_can_run_out_of_memory_synchronize_and_end) {
  for (auto const how : {gpumem::reuse_policy::ordered, gpumem::reuse_policy::completed, gpumem::reuse_policy::wait}) {
    std::optional<pool_resource<gpumem::cuda_resource>> pool{
        std::in_place, device, gpumem::pool_options{.limit = 64 * MiB, .cross_stream = how}};
    expect_undisturbed([&] {
      auto const foreign = make_foreign();
      for (auto const on : {stream_ref{own_}, foreign, stream_ref{CU_STREAM_PER_THREAD}}) {
        auto* const p = pool->allocate(on, 60 * MiB);
        EXPECT_FALSE(pool->try_allocate(other_, 60 * MiB));
        EXPECT_THROW((void)pool->allocate(other_, 60 * MiB), gpumem::out_of_memory);
        pool->deallocate(on, p, 60 * MiB);
        pool->synchronize(10s);
        pool->trim();
      }
      auto* const host = pool->allocate_sync(1 * MiB);
      pool->deallocate_sync(host, 1 * MiB);
      pool.reset();
      gpumem::driver_api::driver().stream_destroy(foreign.get());
    });
  }
}

TEST_P(beside_capture, every_pool_call_leaves_the_capture_valid) {
  pool_resource pool{device};
  expect_undisturbed([&] {
    auto const foreign = make_foreign(), blocking = make_foreign(CU_STREAM_DEFAULT);
    std::array const streams{stream_ref{own_}, stream_ref{other_}, foreign, blocking, stream_ref{CU_STREAM_PER_THREAD}};
    auto* const used = pool.allocate(own_, MiB);
    for (auto const on : streams) pool.record_use(used, on); // more streams than a block's uses keep separately
    pool.deallocate(own_, used, MiB);
    for (auto const on : streams) {
      pool.deallocate(on, pool.allocate(on, 8 * MiB), 8 * MiB);
      auto block = pool.acquire(on, MiB).wait();
      { auto const use = block.use_on(other_); }
      block.set_stream(own_);
    }
    pool.reserve(256 * MiB);
    pool.statistics();
    pool.find(used);
    pool.pin(used, 1);
    pool.unpin(used, 1);
    pool.set_limit(512 * MiB);
    pool.synchronize(1s);
    pool.trim();
    gpumem::event happened{device};
    happened.record(own_);
    happened.make_wait(other_);
    happened.is_done();
    happened.synchronize();
    own_.synchronize();
    { auto const promised = gpumem::stream::adopt(foreign.get()); }
    for (auto const each : {foreign, blocking}) gpumem::driver_api::driver().stream_destroy(each.get());
  });
}

TEST_P(beside_capture, calls_of_sources_and_a_hardened_pool_leave_the_capture_valid) {
  expect_undisturbed([&] {
    auto const foreign = make_foreign();
    for (auto const on : {stream_ref{own_}, foreign, stream_ref{CU_STREAM_PER_THREAD}}) {
      gpumem::cuda_resource cuda{device};
      cuda.deallocate(on, cuda.allocate(on, MiB), MiB);
      gpumem::pinned_resource pinned{device};
      pinned.deallocate(on, pinned.allocate(on, MiB), MiB);
      gpumem::managed_resource managed{device};
      managed.deallocate(on, managed.allocate(on, MiB), MiB);
      gpumem::host_resource host;
      host.deallocate(on, host.allocate(on, MiB), MiB);
      gpumem::async_resource async{device};
      async.deallocate(on, async.allocate(on, MiB), MiB);
      pool_resource hard{device, {.limit = 16 * MiB, .hardened = {.enabled = true}}};
      auto* const p = hard.allocate(on, 8 * MiB);
      EXPECT_THROW((void)hard.allocate(on, 12 * MiB), gpumem::out_of_memory);
      hard.deallocate(on, p, 8 * MiB);
      hard.synchronize(10s);
    }
    gpumem::driver_api::driver().stream_destroy(foreign.get());
  });
}

INSTANTIATE_TEST_SUITE_P(begun, beside_capture,
                         testing::Values(begun{CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_NON_BLOCKING},
                                         begun{CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_NON_BLOCKING},
                                         begun{CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_NON_BLOCKING},
                                         begun{CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_DEFAULT},
                                         begun{CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_DEFAULT}));

} // namespace
