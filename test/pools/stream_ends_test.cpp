// The end of a stream, as seen by objects outside the pools: blocks, waits, sources, threads and closed pools.
// SPDX-License-Identifier: Apache-2.0
#include "raw_streams.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::cuda_resource;
using gpumem::pool_resource;
using gpumem::stream_ref;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

using gpumem_test::destroy;
using gpumem_test::timelines;

CUstream make_foreign(unsigned flags = CU_STREAM_NON_BLOCKING) { return gpumem_test::make_foreign(flags).get(); }

class stream_ends : public gpumem_test::raw_stream_test {};

gpumem::task<> wait_for(stream_ref stream, std::atomic<bool>& over) {
  co_await gpumem::completion(stream);
  over = true;
}

// A thread that waits for the work that the stream has so far.
class waiter {
public:
  waiter(gpumem::device device, CUstream stream)
      : metadata_{gpumem::driver_api::driver_calls("cuEventRecord")}, thread_{[this, device, stream] {
          gpumem::device_guard const here{device};
          gpumem::sync_wait(wait_for(stream_ref{stream}, over_));
        }} {
    while (gpumem::driver_api::driver_calls("cuEventRecord") == metadata_) std::this_thread::yield();
    auto const rounds = gpumem::detail::completion_rounds(device);
    while (gpumem::detail::completion_rounds(device) < rounds + 2) std::this_thread::yield(); // it is registered
  }
  bool over() const noexcept { return over_; }
  void join() { thread_.join(); }

private:
  std::uint64_t const metadata_; // before the thread registers its wait
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST_F(stream_ends, wait_for_a_dead_stream_does_not_end_with_the_next_of_its_handle) {
  auto const first = make_foreign();
  simulator::work(stream_ref{first}, {});
  waiter early{device, first};
  run_long(stream_ref{first});
  waiter late{device, first};
  destroy(stream_ref{first});
  auto const second = make_foreign();
  ASSERT_EQ(first, second) << "the driver reuses the handle";
  simulator::work(stream_ref{second}, {});
  waiter next{device, second};
  simulator::run_until_idle();
  early.join();
  next.join();
  EXPECT_FALSE(late.over()) << "its kernel still runs";
  end_long();
  simulator::run_until_idle();
  late.join();
  destroy(stream_ref{second});
}

TEST_F(stream_ends, wait_for_handle_0_does_not_order_blocking_streams) {
  auto const x = make_foreign(CU_STREAM_DEFAULT), y = make_foreign(CU_STREAM_DEFAULT);
  run_long(stream_ref{x});
  waiter waits{device, CUstream{}};
  bool reached = false;
  gpumem::driver_api::driver().launch_host_func(y, [](void* at) { *static_cast<bool*>(at) = true; }, &reached);
  simulator::run_until_idle();
  EXPECT_TRUE(reached) << "y runs beside x";
  waits.join(); // it waits only for the two streams that handle 0 may mean
  end_long();
  simulator::run_until_idle();
  destroy(stream_ref{x});
  destroy(stream_ref{y});
}

TEST_F(stream_ends, block_of_a_stream_that_is_adopted_later_releases_its_timeline) {
  pool_resource pool{device};
  std::size_t before = 0;
  for (int i = 0; i < 60; ++i) {
    if (i == 10) before = timelines();
    auto const s = make_foreign();
    {
      auto block = pool.acquire(stream_ref{s}, 4096).wait();
      auto const promised = gpumem::stream::adopt(s);
      block.reset();
    }
    simulator::run_until_idle();
    destroy(stream_ref{s});
  }
  EXPECT_LE(timelines() - before, 2u);
}

TEST_F(stream_ends, block_of_a_stream_beyond_the_table_is_freed_by_its_handle) {
  pool_resource pool{device};
  std::vector<CUstream> streams;
  for (int i = 0; i < 4200; ++i) {
    streams.push_back(make_foreign());
    gpumem::extend::identify(stream_ref{streams.back()}, device);
  }
  auto const before = gpumem::driver_api::driver_calls("cuEventRecord");
  { auto const block = pool.acquire(stream_ref{streams.back()}, 4 * MiB).wait(); }
  EXPECT_GE(gpumem::driver_api::driver_calls("cuEventRecord") - before, 1u);
  for (auto const s : streams) destroy(stream_ref{s});
}

// Constructed before its thread uses a default stream, and destroyed after that.
struct late_free {
  pool_resource<cuda_resource>* pool = nullptr;
  void* block = nullptr;
  ~late_free() {
    if (pool) pool->deallocate(stream_ref{CU_STREAM_PER_THREAD}, block, 4096);
  }
};

TEST_F(stream_ends, thread_local_objects_can_free_on_default_streams) {
  pool_resource pool{device};
  std::size_t before = 0;
  for (int i = 0; i < 60; ++i) {
    if (i == 10) before = timelines();
    std::thread{[&] {
      gpumem::driver_api::check(gpumem::driver_api::driver().ctx_set_current(device.context()), "cuCtxSetCurrent");
      thread_local late_free late;
      late.pool = &pool;
      late.block = pool.allocate(stream_ref{CU_STREAM_PER_THREAD}, 4096);
    }}.join();
    simulator::run_until_idle();
  }
  EXPECT_EQ(pool.statistics().live, 0u);
  EXPECT_LE(timelines() - before, 2u);
}

TEST_F(stream_ends, closed_pool_returns_its_pages_once_the_thread_has_ended) {
  gpumem_test::running_device const running;
  auto const free_before = device.memory().free;
  std::optional<pool_resource<cuda_resource>> pool{std::in_place, device};
  std::atomic<int> step{0};
  std::thread thread{[&] {
    gpumem::device_guard const here{device};
    stream_ref const on{CU_STREAM_PER_THREAD};
    for (int i = 0; i < 4097; ++i) pool->deallocate(on, pool->allocate(on, 4096), 4096); // few record events by now
    std::vector<void*> blocks;
    for (int i = 0; i < 30; ++i) blocks.push_back(pool->allocate(on, MiB));
    for (auto* const each : blocks) pool->deallocate(on, each, MiB);
    step = 1;
    while (step < 2) std::this_thread::yield();
  }};
  while (step < 1) std::this_thread::yield();
  pool.reset();
  step = 2;
  thread.join();
  auto const latest = std::chrono::steady_clock::now() + 10s;
  while (device.memory().free != free_before && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  EXPECT_EQ(device.memory().free, free_before);
}

TEST_F(stream_ends, source_frees_blocks_of_default_streams_of_ended_threads) {
  constexpr int many = 50;
  for (auto const handle : {CUstream{}, CU_STREAM_PER_THREAD}) {
    cuda_resource source{device};
    auto const before = source.statistics().reserved;
    std::vector<gpumem::allocation> blocks(many);
    std::atomic<int> have_one{0};
    std::vector<std::thread> threads;
    for (auto& block : blocks) {
      threads.emplace_back([&] {
        gpumem::device_guard const here{device};
        block = source.acquire(stream_ref{handle}, MiB).wait();
        ++have_one;
        while (have_one < many) std::this_thread::yield();
      });
    }
    for (auto& each : threads) each.join();
    simulator::run_until_idle();
    blocks.clear();
    source.deallocate(lasting, source.allocate(lasting, 512), 512);
    EXPECT_EQ(source.statistics().reserved, before);
  }
}

TEST_F(stream_ends, free_of_a_driver_pool_block_on_a_default_stream_ends_no_capture) {
  struct what {
    CUstream block, captures;
  };
  auto const blocking = make_foreign(CU_STREAM_DEFAULT);
  for (auto const& [handle, captures] :
       {what{CUstream{}, blocking}, what{CU_STREAM_PER_THREAD, CU_STREAM_PER_THREAD}}) {
    gpumem::async_resource source{device};
    auto block = source.acquire(stream_ref{handle}, MiB).wait();
    gpumem::driver_api::check(
        gpumem::driver_api::driver().stream_begin_capture(captures, CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
    block.reset();
    CUgraph graph = nullptr;
    EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(captures, &graph), CUDA_SUCCESS);
    gpumem::driver_api::driver().graph_destroy(graph);
  }
  destroy(stream_ref{blocking});
}

TEST_F(stream_ends, event_recorded_into_a_capture_shows_no_completion) {
  pool_resource pool{device};
  stream_ref const on{CU_STREAM_PER_THREAD};
  auto block = pool.acquire(on, 4096).wait();
  auto* const large = pool.allocate(on, 256 * MiB);
  run_long(on);
  pool.deallocate(on, large, 256 * MiB);
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_begin_capture(on.get(), CU_STREAM_CAPTURE_MODE_RELAXED),
                            "begin");
  block.reset();
  CUgraph graph = nullptr;
  EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(on.get(), &graph), CUDA_SUCCESS);
  gpumem::driver_api::driver().graph_destroy(graph);
  end_long();
  simulator::run_until_idle();
  pool.deallocate(on, pool.allocate(on, 512), 512); // completes the free that was deferred in the capture
  simulator::run_until_idle();
  EXPECT_TRUE(pool.synchronize(1s));
  EXPECT_EQ(pool.trim(), pool.statistics().peak_reserved) << "all its work was seen complete";
}

// `allocate` waits for memory that is free but in use; requests that may block do so too.
TEST_F(stream_ends, buffers_and_blocking_requests_wait_for_freed_memory_at_the_limit) {
  gpumem_test::running_device const running;
  pool_resource pool{device, {.limit = 64 * MiB}};
  gpumem::stream other{device};
  auto const in_use = [&](auto request) {
    begin_long();
    auto* const block = pool.allocate(lasting, 60 * MiB);
    run_long(lasting);
    pool.deallocate(lasting, block, 60 * MiB);
    std::atomic<bool> answered{false};
    auto const queries = gpumem::driver_api::driver_calls("cuEventQuery");
    std::thread ends{[&] { // ends the kernel after the request has polled it 10 times
      while (!answered && gpumem::driver_api::driver_calls("cuEventQuery") < queries + 10) std::this_thread::yield();
      end_long();
    }};
    EXPECT_NO_THROW(request());
    answered = true;
    ends.join();
  };
  in_use([&] { gpumem::buffer const made{other, pool, 60 * MiB}; });
  in_use([&] { auto const block = pool.acquire(other, 60 * MiB).wait(); });
}

} // namespace
