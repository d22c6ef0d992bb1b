// A fixture for the pools of PyTorch: begins and ends them, and captures on their streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_fixture.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <utility>

class torch_pools : public torch_blocks {
protected:
  using id = gpumem_torch_pool_id;
  static constexpr auto promises = GPUMEM_TORCH_STREAM_LIVES + GPUMEM_TORCH_DEVICE_CURRENT;

  void SetUp() override {
    torch_blocks::SetUp();
    stream = make_stream(device);
  }
  void TearDown() override {
    empty_until([] { return figures(device).reserved.current == 0; });
    EXPECT_EQ(figures(device).reserved.current, 0u);
    EXPECT_EQ(figures(device).blocks[GPUMEM_TORCH_ALL].current, 0u);
    torch_blocks::TearDown();
  }

  /// Memory of a pool that ends may go back on gpumem's own thread.
  template <class Done> static void empty_until(Done done) {
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      empty_cache();
      std::this_thread::sleep_for(milliseconds{1});
    }
  }
  static constexpr auto everything = [](CUstream) { return true; };
  static void begin(id pool, std::function<bool(CUstream)> filter = everything) {
    gpumem_torch_begin_allocate_to_pool(device, pool, std::move(filter));
  }
  static void end(id pool) { gpumem_torch_end_allocate_to_pool(device, pool); }
  static void release(id pool) { gpumem_torch_release_pool(device, pool); }
  static int uses(id pool) {
    int count = -1;
    EXPECT_EQ(gpumem_torch_pool_use_count(device, pool, &count), GPUMEM_GRANTED) << gpumem_last_error();
    return count;
  }
  void* block(std::size_t bytes) const { return allocate_block(bytes, device, stream, promises); }
  static id pool_of(void const* pointer) {
    gpumem_torch_block found{};
    found.size = sizeof found;
    EXPECT_EQ(gpumem_torch_describe_block(pointer, &found), GPUMEM_GRANTED);
    EXPECT_EQ(found.device, device);
    return {found.pool[0], found.pool[1]};
  }
  void begin_capture() const {
    ASSERT_EQ(driver<decltype(&cuStreamBeginCapture)>("cuStreamBeginCapture_v2")(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
  }
  /// Makes the second stream wait for the first one.
  static void join(CUstream from, CUstream to) {
    CUevent event = nullptr;
    ASSERT_EQ(driver<decltype(&cuEventCreate)>("cuEventCreate")(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(driver<decltype(&cuEventRecord)>("cuEventRecord")(event, from), CUDA_SUCCESS);
    ASSERT_EQ(driver<decltype(&cuStreamWaitEvent)>("cuStreamWaitEvent")(to, event, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver<decltype(&cuEventDestroy)>("cuEventDestroy_v2")(event), CUDA_SUCCESS);
  }
  CUgraph end_capture() const {
    CUgraph graph = nullptr;
    EXPECT_EQ(driver<decltype(&cuStreamEndCapture)>("cuStreamEndCapture")(stream, &graph), CUDA_SUCCESS);
    EXPECT_NE(graph, nullptr) << "a call has ended the capture";
    return graph;
  }
  static void destroy_graph(CUgraph graph) {
    EXPECT_EQ(driver<decltype(&cuGraphDestroy)>("cuGraphDestroy")(graph), CUDA_SUCCESS);
  }

  static constexpr int device = 1;
  CUstream stream = nullptr;
  id const first{0, 1}, second{0, 2};
};
