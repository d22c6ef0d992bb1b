// Handle 0: frees on it put no barrier between other streams, and its meaning can be set.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstdint>
#include <thread>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::default_stream;
using gpumem::pool_resource;
using gpumem::stream_ref;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

class legacy_stream : public gpumem_test::simulated_test {
protected:
  void SetUp() override {
    gpumem::driver_api::check(gpumem::driver_api::driver().mem_host_alloc(&flag_, 64, 0), "cuMemHostAlloc");
    *static_cast<std::uint32_t volatile*>(flag_) = 0;
  }
  void TearDown() override {
    gpumem::set_default_stream(default_stream::either);
    simulated_test::TearDown();
    gpumem::driver_api::driver().mem_free_host(flag_);
  }
  template <class Function> static Function* function(char const* name) {
    return gpumem_test::driver_function<Function>(name);
  }
  void wait_for_flag(CUstream on) {
    function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32_v2")(on, reinterpret_cast<CUdeviceptr>(flag_), 1,
                                                                      CU_STREAM_WAIT_VALUE_EQ);
  }
  void write_flag(CUstream on) {
    function<decltype(cuStreamWriteValue32)>("cuStreamWriteValue32_v2")(on, reinterpret_cast<CUdeviceptr>(flag_), 1, 0);
  }
  static CUstream make_blocking() {
    CUstream made = nullptr;
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&made, CU_STREAM_DEFAULT), "cuStreamCreate");
    return made;
  }

  gpumem::device device = gpumem::device::current();
  gpumem::stream b{device};
  stream_ref const null{CUstream{}};
  void* flag_ = nullptr;
};

// A kernel on x waits for one on y: a barrier between them on the device would hang a correct program.
TEST_F(legacy_stream, frees_on_handle_0_do_not_order_other_streams) {
  pool_resource pool{device};
  auto const x = make_blocking(), y = make_blocking();
  for (auto const bytes : {64 * MiB, 128 * MiB}) { // b is a second stream that allocates
    pool.deallocate(null, pool.allocate(null, bytes), bytes);
    pool.deallocate(b, pool.allocate(b, bytes), bytes);
  }
  wait_for_flag(x);
  for (std::size_t i = 0; i < 70; ++i) {
    auto const bytes = 64 * MiB + i * 4096;
    pool.deallocate(null, pool.allocate(null, bytes), bytes);
  }
  write_flag(y);
  EXPECT_EQ(simulator::run_until_idle(), 0u) << "y should have run first";
  for (auto const each : {x, y}) gpumem::driver_api::driver().stream_destroy(each);
}

TEST_F(legacy_stream, end_of_a_thread_does_not_order_other_streams) {
  pool_resource pool{device};
  auto const x = make_blocking(), y = make_blocking();
  wait_for_flag(x);
  for (auto const handle : {CUstream{}, CU_STREAM_PER_THREAD}) {
    std::thread{[&] {
      gpumem::device_guard const here{device};
      pool.deallocate(stream_ref{handle}, pool.allocate(stream_ref{handle}, MiB), MiB);
    }}.join();
  }
  write_flag(y);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  for (auto const each : {x, y}) gpumem::driver_api::driver().stream_destroy(each);
}

// Handle 0 may be either of the two default streams, and either can still be busy.
TEST_F(legacy_stream, memory_freed_on_handle_0_is_complete_after_both_default_streams) {
  for (auto const means : {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    *static_cast<std::uint32_t volatile*>(flag_) = 0;
    pool_resource pool{device};
    auto* const p = pool.allocate(null, 64 * MiB);
    wait_for_flag(means);
    simulator::work(stream_ref{means}, {simulator::write(p, 64 * MiB)});
    pool.deallocate(null, p, 64 * MiB);
    simulator::run_until_idle();
    EXPECT_NE(pool.allocate(b, 64 * MiB), p);
    *static_cast<std::uint32_t volatile*>(flag_) = 1;
    simulator::run_until_idle();
    EXPECT_EQ(pool.allocate(b, 64 * MiB), p);
  }
}

// Querying the legacy stream would invalidate a capture of a blocking stream.
TEST_F(legacy_stream, capture_of_a_blocking_stream_stays_valid) {
  pool_resource pool{device};
  pool.deallocate(null, pool.allocate(null, 64 * MiB), 64 * MiB);
  stream_ref const legacy{CU_STREAM_LEGACY};
  pool.deallocate(legacy, pool.allocate(legacy, 8 * MiB), 8 * MiB);
  simulator::run_until_idle();
  auto const x = make_blocking();
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_begin_capture(x, CU_STREAM_CAPTURE_MODE_GLOBAL),
                            "cuStreamBeginCapture");
  auto* const p = pool.allocate(b, 64 * MiB);
  pool.trim();
  pool.synchronize(std::chrono::nanoseconds{0});
  CUgraph graph = nullptr;
  EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(x, &graph), CUDA_SUCCESS);
  gpumem::driver_api::driver().graph_destroy(graph);
  pool.deallocate(b, p, 64 * MiB);
  gpumem::driver_api::driver().stream_destroy(x);
}

TEST_F(legacy_stream, set_default_stream_selects_the_meaning_of_handle_0) {
  stream_ref const legacy{CU_STREAM_LEGACY}, per_thread{CU_STREAM_PER_THREAD};
  EXPECT_NE(gpumem::extend::identify(null, device), gpumem::extend::identify(legacy, device));
  gpumem::set_default_stream(default_stream::legacy);
  EXPECT_EQ(gpumem::extend::identify(null, device), gpumem::extend::identify(legacy, device));
  EXPECT_EQ(gpumem::extend::identify(null, device).identity().handle(), CU_STREAM_LEGACY);
  gpumem::set_default_stream(default_stream::per_thread);
  EXPECT_EQ(gpumem::extend::identify(null, device), gpumem::extend::identify(per_thread, device));
  EXPECT_EQ(gpumem::extend::identify(null, device).identity().handle(), CU_STREAM_PER_THREAD);
  gpumem::set_default_stream(default_stream::either);
  EXPECT_NE(gpumem::extend::identify(null, device), gpumem::extend::identify(per_thread, device));
}

// Memory that one thread frees on the legacy stream is available to another thread at once.
TEST_F(legacy_stream, threads_reuse_memory_of_the_legacy_stream) {
  gpumem::set_default_stream(default_stream::legacy);
  pool_resource pool{device};
  auto* const p = pool.allocate(null, 64 * MiB);
  simulator::work(null, {simulator::write(p, 64 * MiB)});
  pool.deallocate(null, p, 64 * MiB);
  std::thread{[&] {
    gpumem::device_guard const here{device};
    EXPECT_EQ(pool.allocate(null, 64 * MiB), p);
  }}.join();
}

} // namespace
