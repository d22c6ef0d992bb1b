// Captured graphs on a real device: kernels stamp and check memory that was allocated inside the capture. The graphs
// are launched again and again while other streams use the pool.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t KiB = std::size_t{1} << 10, MiB = KiB << 10;
constexpr unsigned spin = 200; // microseconds: longer than the host takes to enqueue the next work

// A captured graph; the caller waits for its launches before the end.
class launched_graph {
public:
  explicit launched_graph(cudaGraph_t captured) : graph_{captured} {
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph_, 0), cudaSuccess);
  }
  launched_graph(launched_graph&& other) noexcept
      : graph_{std::exchange(other.graph_, nullptr)}, executable_{std::exchange(other.executable_, nullptr)} {}
  ~launched_graph() {
    if (!graph_) return;
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  void launch(stream_ref on) const { EXPECT_EQ(cudaGraphLaunch(executable_, on.get()), cudaSuccess); }

private:
  cudaGraph_t graph_;
  cudaGraphExec_t executable_ = nullptr;
};

class captures_on_device : public device_test {
protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped()) return; // without a device there are no streams
    for (int i = 0; i < 3; ++i) streams_.emplace_back(device{0});
    ASSERT_EQ(cudaEventCreateWithFlags(&between_, cudaEventDisableTiming), cudaSuccess);
  }
  void TearDown() override {
    if (between_) EXPECT_EQ(cudaEventDestroy(between_), cudaSuccess);
    device_test::TearDown();
  }
  stream& a() { return streams_[0]; }
  stream& b() { return streams_[1]; }
  stream& c() { return streams_[2]; }

  static void begin(stream_ref on, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    ASSERT_EQ(cudaStreamBeginCapture(on.get(), mode), cudaSuccess);
  }
  static launched_graph end(stream_ref on) {
    cudaGraph_t made = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(on.get(), &made), cudaSuccess) << "the capture was disturbed";
    return launched_graph{made};
  }
  void order(stream_ref from, stream_ref to) {
    EXPECT_EQ(cudaEventRecord(between_, from.get()), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(to.get(), between_, 0), cudaSuccess);
  }
  void stamp_and_check(stream_ref on, void* p, std::size_t bytes, std::uint64_t value) {
    stamp::write(on.get(), p, bytes, value);
    stamp::check(on.get(), p, bytes, value, wrong_, spin);
  }
  // Launches the graphs in the order of their captures while another stream uses the pool.
  template <class Pool> void launch_often(Pool& pool, std::vector<launched_graph> const& graphs, stream_ref on) {
    for (std::uint64_t round = 0; round < 5; ++round) {
      for (auto const& each : graphs) {
        each.launch(on);
        auto* const p = pool.allocate(c(), 256 * KiB);
        stamp_and_check(c(), p, 256 * KiB, ~round);
        pool.deallocate(c(), p, 256 * KiB);
      }
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

private:
  std::vector<stream> streams_;
  cudaEvent_t between_ = nullptr;
};

TEST_F(captures_on_device, graphs_that_share_memory_find_their_stamps) {
  pool_resource pool{device{0}};
  graph_resource memory{pool};
  std::vector<launched_graph> graphs;
  std::vector<void*> other;
  for (int i = 0; i < 4; ++i) {
    other.push_back(pool.allocate(a(), 4 * MiB));
    stamp_and_check(a(), other.back(), 4 * MiB, 7);
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    auto const scope = pool.capture(memory, a());
    begin(a());
    auto* const p = pool.allocate(a(), 64 * KiB);
    stamp::write(a().get(), p, 64 * KiB, 10 * i);
    order(a(), b());
    auto* const q = pool.allocate(b(), 64 * KiB);
    stamp_and_check(b(), q, 64 * KiB, 10 * i + 1);
    pool.deallocate(b(), q, 64 * KiB);
    auto* const again = pool.allocate(b(), 64 * KiB);
    EXPECT_EQ(again, q) << "the same stream";
    stamp_and_check(b(), again, 64 * KiB, 10 * i + 2);
    stamp::check(a().get(), p, 64 * KiB, 10 * i, wrong_, spin);
    pool.deallocate(a(), p, 64 * KiB);
    pool.deallocate(a(), other[i], 4 * MiB);               // not of the graph: deferred
    auto* const large = pool.allocate(a(), (8 + i) * MiB); // grows
    stamp_and_check(a(), large, (8 + i) * MiB, 10 * i + 3);
    order(b(), a());
    pool.deallocate(b(), again, 64 * KiB);
    pool.deallocate(a(), large, (8 + i) * MiB);
    graphs.push_back(end(a()));
  }
  EXPECT_EQ(memory.statistics().live, 0u);
  pool.trim(); // what the graphs use stays
  launch_often(pool, graphs, a());
  pool.trim();
  launch_often(pool, graphs, b());
}

TEST_F(captures_on_device, streams_that_the_graph_orders_share_memory) {
  pool_resource pool{device{0}};
  graph_resource memory{pool};
  std::vector<launched_graph> graphs;
  for (std::uint64_t i = 0; i < 4; ++i) {
    auto const scope = pool.capture(memory, a());
    begin(a());
    auto* const p = pool.allocate(a(), 8 * MiB);
    stamp_and_check(a(), p, 8 * MiB, 10 * i);
    pool.deallocate(a(), p, 8 * MiB);
    order(a(), b());
    auto* const q = pool.allocate(b(), 8 * MiB);
    EXPECT_EQ(q, p) << "b comes after a";
    stamp_and_check(b(), q, 8 * MiB, 10 * i + 1);
    auto* const beside = pool.allocate(a(), 8 * MiB);
    EXPECT_NE(beside, q);
    stamp_and_check(a(), beside, 8 * MiB, 10 * i + 2);

    auto* const read = pool.allocate(a(), 4 * MiB);
    stamp::write(a().get(), read, 4 * MiB, 10 * i + 3);
    order(a(), b());
    stamp::check(b().get(), read, 4 * MiB, 10 * i + 3, wrong_, spin);
    pool.record_use(read, b());
    pool.deallocate(a(), read, 4 * MiB);
    auto* const other = pool.allocate(a(), 4 * MiB);
    EXPECT_NE(other, read) << "b reads it beside a";
    stamp_and_check(a(), other, 4 * MiB, 10 * i + 4);
    order(b(), a());
    auto* const again = pool.allocate(a(), 4 * MiB);
    EXPECT_EQ(again, read) << "a comes after b";
    stamp_and_check(a(), again, 4 * MiB, 10 * i + 5);
    for (auto* const each : {q, beside}) pool.deallocate(a(), each, 8 * MiB);
    for (auto* const each : {other, again}) pool.deallocate(a(), each, 4 * MiB);
    graphs.push_back(end(a()));
  }
  EXPECT_EQ(memory.statistics().upstream_allocations, 4u) << "later captures use the same memory";
  EXPECT_GE(memory.statistics().reuse_ordered, 8u);
  launch_often(pool, graphs, a());
}

TEST_F(captures_on_device, scope_serves_raw_and_adopted_streams_and_those_that_join) {
  pool_resource pool{device{0}, {.limit = 64 * MiB}};
  graph_resource memory{pool};
  cudaStream_t raw = nullptr, promised = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&promised, cudaStreamNonBlocking), cudaSuccess);
  {
    auto const adopted = stream::adopt(promised);
    std::vector<launched_graph> graphs;
    for (auto const mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
      for (auto const origin : {stream_ref{raw}, stream_ref{promised}}) {
        auto const joins = stream_ref{origin.get() == raw ? promised : raw};
        begin(origin, mode);
        if (origin.get() == raw) EXPECT_FALSE(pool.try_allocate(origin, KiB)) << "without a scope";
        auto const scope = pool.capture(memory, origin);
        order(origin, joins);
        auto* const p = pool.allocate(joins, 3 * MiB);
        EXPECT_TRUE(memory.find(p));
        stamp_and_check(joins, p, 3 * MiB, 5);
        order(joins, origin);
        pool.deallocate(joins, p, 3 * MiB);
        auto const refused = pool.acquire(origin, 128 * MiB).try_now();
        EXPECT_FALSE(refused);
        graphs.push_back(end(origin));
      }
    }
    launch_often(pool, graphs, stream_ref{raw});
  }
  EXPECT_EQ(cudaStreamDestroy(raw), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(promised), cudaSuccess);
}

TEST_F(captures_on_device, other_threads_use_the_pool_beside_a_capture_in_global_mode) {
  pool_resource pool{device{0}, {.limit = 256 * MiB}};
  std::vector<std::thread> threads;
  auto const before = pool.statistics().live;
  {
    graph_resource memory{pool};
    std::vector<launched_graph> graphs;
    auto const scope = pool.capture(memory, a());
    begin(a());
    threads.emplace_back([&] {
      device_guard const here{device{0}};
      stream const own{device{0}};
      for (std::uint64_t i = 0; i < 50; ++i) {
        auto* const p = pool.allocate(own, (1 + i % 8) * MiB);
        stamp_and_check(own, p, MiB, i);
        pool.deallocate(own, p, (1 + i % 8) * MiB);
        if (i % 10 == 9) pool.trim();
      }
    });
    for (std::uint64_t i = 0; i < 20; ++i) {
      auto* const p = pool.allocate(a(), (1 + i) * MiB);
      stamp_and_check(a(), p, (1 + i) * MiB, i);
      pool.deallocate(a(), p, (1 + i) * MiB);
    }
    graphs.push_back(end(a()));
    threads.back().join();
    launch_often(pool, graphs, a());
  }
  EXPECT_EQ(pool.statistics().live, before) << "the memory of the graph went back as a whole";
}

} // namespace
