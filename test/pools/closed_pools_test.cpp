// Memory of pools that lost their last handle before an event covered all frees on streams of the user.
// SPDX-License-Identifier: Apache-2.0
#include "raw_streams.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

#include "../support/busy_library_thread.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::cuda_resource;
using gpumem::pool_options;
using gpumem::pool_resource;
using gpumem::stream_ref;
using gpumem_test::destroy;
using gpumem_test::make_foreign;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

class closed_pools : public gpumem_test::raw_stream_test {
protected:
  void SetUp() override {
    raw_stream_test::SetUp();
    before_ = device_bytes();
    // Tests of destroyed streams in this process let each free record an event.
    gpumem::detail::note_uncovered_memory(gpumem::detail::uncovered_memory::dead_streams, false);
  }
  void TearDown() override {
    // A request that finds no memory frees what is complete in all closed pools, and cuMemFree waits for all device
    // work. The next test has work that runs until the test ends it, so that no closed pool may remain.
    gpumem::extend::identify(lasting, device); // each call that gets the stream covers its frees
    EXPECT_TRUE(wait_for_device_bytes(before_)) << device_bytes() - before_;
    raw_stream_test::TearDown();
  }
  // Makes the frees of one short job, of which a few leave no event.
  template <class Pool> static void run_job(Pool& pool, stream_ref on, int frees = 200) {
    std::deque<std::pair<void*, std::size_t>> live;
    auto const free_first = [&] {
      pool.deallocate(on, live.front().first, live.front().second);
      live.pop_front();
    };
    for (int i = 0; i < frees; ++i) {
      auto const bytes = static_cast<std::size_t>(i) * 7919 % (3 * MiB) + 1;
      live.emplace_back(pool.allocate(on, bytes), bytes);
      simulator::work(on, {simulator::write(live.back().first, 1)});
      if (live.size() > 8) free_first();
    }
    while (!live.empty()) free_first();
    simulator::run_until_idle();
  }
  // Frees blocks until a free has left no event, or 70 blocks.
  template <class Pool> void free_silently(Pool& pool, stream_ref on, std::size_t bytes) {
    auto const& epochs = gpumem::extend::identify(on, device).identity().timeline().epochs();
    for (int i = 0; i < 65 || (i < 70 && epochs.uncovered_frees() == 0); ++i) {
      auto const size = i < 64 ? 256 : bytes;
      pool.deallocate(on, pool.allocate(on, size), size);
    }
    simulator::run_until_idle();
  }

private:
  std::size_t before_ = 0;
};

TEST_F(closed_pools, two_hundred_pools_keep_64_mib) {
  gpumem_test::running_device const running;
  for (pool_options const& options :
       {pool_options{}, pool_options{.pages = false}, pool_options{.limit = 1024 * MiB}}) {
    auto const before = device_bytes();
    std::vector<stream_ref> streams;
    for (int i = 0; i < 200; ++i) {
      streams.push_back(make_foreign());
      pool_resource pool{device, options};
      run_job(pool, streams.back());
    }
    EXPECT_TRUE(wait_for_device_bytes(before + 64 * MiB)) << device_bytes() - before;
    for (auto const on : streams) gpumem::extend::identify(on, device);
    EXPECT_TRUE(wait_for_device_bytes(before)) << "each call that got a stream has covered it";
    for (auto const on : streams) destroy(on);
  }
}

TEST_F(closed_pools, covered_streams_keep_nothing) {
  gpumem_test::running_device const running;
  auto const before = device_bytes();
  for (int i = 0; i < 20; ++i) {
    auto const on = make_foreign();
    {
      pool_resource pool{device};
      run_job(pool, on);
      gpumem::cover_frees(on);
    }
    EXPECT_TRUE(wait_for_device_bytes(before));
    destroy(on);
  }
}

TEST_F(closed_pools, next_call_of_any_kind_with_the_stream_covers_it_at_once) {
  using call = std::function<void(pool_resource<gpumem::cuda_resource>&, stream_ref)>;
  pool_resource other{cuda_resource{device}};
  void* block = nullptr;
  std::pair<char const*, call> const calls[] = {
      {"identify", [&](auto&, stream_ref on) { gpumem::extend::identify(on, device); }},
      {"allocate",
       [&](auto& pool, stream_ref on) { pool.deallocate(lasting, std::exchange(block, pool.allocate(on, 256)), 256); }},
      {"deallocate", [&](auto& pool, stream_ref on) { pool.deallocate(on, std::exchange(block, nullptr), 256); }},
      {"acquire", [&](auto& pool, stream_ref on) { EXPECT_TRUE(pool.acquire(on, 256).try_now()); }},
      {"record_use", [&](auto& pool, stream_ref on) { pool.record_use(block, on); }},
      {"a source",
       [&](auto&, stream_ref on) {
         cuda_resource source{device};
         source.deallocate(on, source.allocate_sync(256), 256);
       }},
  };
  for (auto const& [name, call] : calls) {
    if (!block) block = other.allocate(lasting, 256);
    other.trim();
    auto const before = device_bytes();
    auto const on = make_foreign();
    {
      pool_resource pool{device};
      free_silently(pool, on, 8 * MiB);
    }
    EXPECT_GT(device_bytes(), before) << name;
    {
      test::busy_library_thread const busy; // the pool's end has asked for the event, not a later pass
      call(other, on);
    }
    EXPECT_TRUE(wait_for_device_bytes(before + 4 * MiB)) << name;
    gpumem::cover_frees(on); // frees at `other`
    destroy(on);
  }
  if (block) other.deallocate(lasting, block, 256);
}

TEST_F(closed_pools, request_without_memory_takes_what_is_complete_in_closed_pools) {
  for (bool const hardened : {false, true}) {
    gpumem_test::recording_upstream const upstream;
    upstream.state().capacity = 64 * MiB;
    pool_resource other{upstream};
    auto const on = make_foreign();
    std::optional<pool_resource<gpumem_test::recording_upstream>> pool{std::in_place, upstream,
                                                                       pool_options{.hardened = {.enabled = hardened}}};
    if (hardened) {
      gpumem_test::freed_in_use(*pool, on, 60 * MiB);
    } else {
      free_silently(*pool, on, 60 * MiB);
    }
    test::busy_library_thread const busy;
    pool.reset();
    auto const refused = other.try_allocate(lasting, 60 * MiB);
    EXPECT_FALSE(refused) << "no event covers the free";
    if (refused) other.deallocate(lasting, *refused, 60 * MiB);
    gpumem::cover_frees(on);
    gpumem::expected<void*, gpumem::failure> block = nullptr;
    for (int i = 0; i < (hardened ? 10 : 1) && (i == 0 || !block);
         ++i) { // a hardened pool first copies the block to the host, to check it
      simulator::run_until_idle();
      block = other.try_allocate(lasting, 60 * MiB);
    }
    EXPECT_TRUE(block) << hardened;
    if (block) other.deallocate(lasting, *block, 60 * MiB);
    destroy(on);
  }
}

TEST_F(closed_pools, reserve_takes_what_is_complete_in_closed_pools) {
  gpumem_test::recording_upstream const upstream;
  upstream.state().capacity = 64 * MiB;
  pool_resource other{upstream};
  test::busy_library_thread const busy;
  {
    pool_resource pool{upstream};
    run_long(lasting);
    gpumem_test::freed_in_use(pool, lasting, 60 * MiB);
  }
  EXPECT_THROW(other.reserve(60 * MiB), gpumem::out_of_memory);
  end_long();
  simulator::run_until_idle();
  EXPECT_NO_THROW(other.reserve(60 * MiB));
}

// While a closed pool gives memory back, it calls a function of the user. That function requests memory that only the
// same pool has.
TEST_F(closed_pools, pool_that_gives_memory_back_is_not_asked_again_by_the_same_thread) {
  for (bool const hardened : {false, true}) {
    gpumem_test::recording_upstream upstream;
    upstream.state().capacity = 64 * MiB;
    pool_resource other{upstream};
    int calls = 0;
    auto const allocate = [&](stream_ref, std::size_t bytes, std::size_t) { return upstream.allocate_sync(bytes); };
    auto const free = [&](stream_ref, void* pointer, std::size_t bytes, std::size_t) {
      ++calls;
      EXPECT_FALSE(other.try_allocate(lasting, 60 * MiB));
      upstream.deallocate_sync(pointer, bytes);
    };
    test::busy_library_thread const busy;
    {
      pool_resource pool{gpumem::callback_resource{device, allocate, free},
                         pool_options{.hardened = {.enabled = hardened}}};
      run_long(lasting);
      gpumem_test::freed_in_use(pool, lasting, 60 * MiB);
    }
    end_long();
    gpumem::expected<void*, gpumem::failure> block = nullptr;
    for (int i = 0; i < 10 && (i == 0 || !block); ++i) {
      simulator::run_until_idle();
      block = other.try_allocate(lasting, 60 * MiB);
    }
    EXPECT_TRUE(block) << hardened;
    EXPECT_EQ(calls, 1);
    if (block) other.deallocate(lasting, *block, 60 * MiB);
  }
}

// Many pools end, and each keeps little: the records of all of them must not grow without bound.
TEST_F(closed_pools, number_of_pools_that_wait_for_an_event_is_bounded) {
  auto const before = device_bytes();
  std::size_t chunk = 1;
  auto const kept = [&] { return (device_bytes() - before) / chunk; };
  std::vector<stream_ref> streams;
  for (int i = 0; i < 200; ++i) {
    streams.push_back(make_foreign());
    {
      pool_resource pool{cuda_resource{device}, {.chunk_size = 65536}};
      free_silently(pool, streams.back(), 256);
    }
    if (i == 0) chunk = std::max(kept(), std::size_t{1});
  }
  auto const end = std::chrono::steady_clock::now() + 10s;
  while (kept() > 64 && std::chrono::steady_clock::now() < end) simulator::run_until_idle();
  EXPECT_LE(kept(), 64u);
  EXPECT_GE(kept(), 1u) << "otherwise this tests nothing";
  for (auto const on : streams) gpumem::extend::identify(on, device);
  while (kept() > 0 && std::chrono::steady_clock::now() < end) simulator::run_until_idle();
  EXPECT_EQ(kept(), 0u);
  auto const records = gpumem::driver_api::driver_calls("cuEventRecord");
  {
    pool_resource pool{device};
    for (int i = 0; i < 4096; ++i) pool.deallocate(streams.front(), pool.allocate(streams.front(), 256), 256);
  }
  EXPECT_LE(gpumem::driver_api::driver_calls("cuEventRecord") - records, 1000u) << "frees are silent again";
  gpumem::cover_frees(streams.front());
  for (auto const on : streams) destroy(on);
}

TEST_F(closed_pools, streams_that_capture_are_refused_and_covered_later) {
  auto const before = device_bytes();
  auto const on = make_foreign();
  {
    pool_resource pool{device};
    free_silently(pool, on, 8 * MiB);
    auto const& driver = gpumem::driver_api::driver();
    gpumem::driver_api::check(driver.stream_begin_capture(on.get(), CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
    EXPECT_THROW(gpumem::cover_frees(on), gpumem::acquire_error);
    CUgraph graph = nullptr;
    EXPECT_EQ(driver.stream_end_capture(on.get(), &graph), CUDA_SUCCESS);
    driver.graph_destroy(graph);
    gpumem::cover_frees(on);
  }
  EXPECT_TRUE(wait_for_device_bytes(before));
  destroy(on);
}

} // namespace
