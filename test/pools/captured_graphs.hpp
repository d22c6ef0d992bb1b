// A fixture for captures: streams of each kind, captures on raw handles, and graphs that are launched again and again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include <cuda.h>

import gpumem;

namespace gpumem_test {

namespace simulator = gpumem::simulator;
inline gpumem::driver_api::driver_table const& cu() { return gpumem::driver_api::driver(); }

// A graph that was captured; ends with this object.
class captured_graph {
public:
  explicit captured_graph(CUgraph captured) : graph_{captured} {
    driver_function<decltype(cuGraphInstantiateWithFlags)>("cuGraphInstantiateWithFlags")(&executable_, graph_, 0);
  }
  captured_graph(captured_graph&& other) noexcept
      : graph_{std::exchange(other.graph_, nullptr)}, executable_{std::exchange(other.executable_, nullptr)} {}
  ~captured_graph() {
    if (!graph_) return;
    driver_function<decltype(cuGraphExecDestroy)>("cuGraphExecDestroy")(executable_);
    cu().graph_destroy(graph_);
  }
  void launch(gpumem::stream_ref on) const {
    EXPECT_EQ(driver_function<decltype(cuGraphLaunch)>("cuGraphLaunch")(executable_, on.get()), CUDA_SUCCESS);
  }

private:
  CUgraph graph_;
  CUgraphExec executable_ = nullptr;
};

inline void begin_capture(gpumem::stream_ref on, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
  ASSERT_EQ(cu().stream_begin_capture(on.get(), mode), CUDA_SUCCESS);
}
inline captured_graph end_capture(gpumem::stream_ref on) {
  CUgraph made = nullptr;
  EXPECT_EQ(cu().stream_end_capture(on.get(), &made), CUDA_SUCCESS) << "the capture was disturbed";
  return captured_graph{made};
}

// Makes the stream `to` wait for `from`, as a program does in a capture: `to` joins it.
inline void join_streams(gpumem::stream_ref from, gpumem::stream_ref to) {
  CUevent between = nullptr;
  gpumem::driver_api::check(cu().event_create(&between, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  EXPECT_EQ(cu().event_record(between, from.get()), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_wait_event(to.get(), between, 0), CUDA_SUCCESS);
  cu().event_destroy(between);
}

class capture_test : public simulated_test {
protected:
  using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;
  using graph_type = gpumem::graph_resource<pool_type>;
  static constexpr std::size_t KiB = std::size_t{1} << 10, MiB = KiB << 10;

  // Graph memory may end only after the host has waited for all launches.
  void TearDown() override {
    simulator::run_until_idle();
    a.synchronize();
    b.synchronize();
    simulated_test::TearDown();
  }

  static gpumem::stream_ref make_foreign() {
    CUstream made = nullptr;
    gpumem::driver_api::check(cu().stream_create(&made, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return gpumem::stream_ref{made};
  }

  // Work that writes a stamp, and work that checks one.
  static void write(gpumem::stream_ref on, void* p, std::size_t bytes, int stamp) {
    simulator::work(on, {simulator::write(p, bytes)}, std::chrono::microseconds{1},
                    [=] { std::memset(p, stamp, bytes); });
  }
  void check(gpumem::stream_ref on, void const* p, std::size_t bytes, int stamp) {
    simulator::work(on, {simulator::read(p, bytes)}, std::chrono::microseconds{1}, [=, this] {
      auto const* const seen = static_cast<unsigned char const*>(p);
      for (std::size_t i = 0; i < bytes; i += 64) wrong += seen[i] != stamp;
      ++checks;
    });
  }

  gpumem::device const device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  pool_type pool{device};
  int wrong = 0;  // stamps that other work has overwritten
  int checks = 0; // that have run
};

// A graph memory of the pool.
class scope_test : public capture_test {
protected:
  bool in_graph(void const* p) const { return memory.find(p).has_value(); }
  // The outcome of a request to the pool.
  gpumem::outcome refusal(gpumem::stream_ref on) {
    auto const got = pool.try_allocate(on, KiB);
    if (!got) return got.error().reason;
    pool.deallocate(on, *got, KiB);
    return gpumem::outcome::granted;
  }
  graph_type memory{pool};
};

} // namespace gpumem_test
