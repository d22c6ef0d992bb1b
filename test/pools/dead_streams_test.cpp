// Memory and bookkeeping of streams that are destroyed: raw streams, default streams of ended threads, adopted streams.
// SPDX-License-Identifier: Apache-2.0
#include "../support/allocation_count.hpp"
#include "raw_streams.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::pool_options;
using gpumem::pool_resource;
using gpumem::stream_ref;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

using gpumem_test::destroy;
using gpumem_test::make_foreign;
using gpumem_test::timelines;

// A stream that is synchronized and destroyed at the end of the scope.
class request_stream {
public:
  request_stream() : handle_{make_foreign()} {}
  request_stream(request_stream const&) = delete;
  request_stream& operator=(request_stream const&) = delete;
  ~request_stream() {
    gpumem::driver_api::driver().stream_synchronize(handle_.get());
    destroy(handle_);
  }
  operator stream_ref() const { return handle_; } // NOLINT: as a stream

private:
  stream_ref handle_;
};

class dead_streams : public gpumem_test::raw_stream_test {
protected:
  // One request: allocates a block, uses it and frees it.
  template <class Pool> static void serve(Pool& pool, stream_ref on, std::size_t bytes) {
    auto* const p = pool.allocate(on, bytes);
    simulator::work(on, {simulator::write(p, bytes)});
    pool.deallocate(on, p, bytes);
  }
};

// One request at a time reserves memory for one request, in each kind of pool.
template <class Pool> void expect_one_request_is_reserved(Pool pool, std::size_t bytes) {
  simulator::checked checked{pool};
  for (int i = 0; i < 400; ++i) {
    request_stream const s;
    auto* const p = checked.allocate(s, bytes);
    simulator::work(s, {simulator::write(p, bytes)});
    checked.deallocate(s, p, bytes);
  }
  auto const f = pool.statistics();
  EXPECT_LE(f.peak_reserved, std::max(2 * bytes, 32 * MiB));
}

TEST_F(dead_streams, new_stream_for_each_request_reserves_one_request) {
  for (auto const bytes : {std::size_t{4096}, 1 * MiB, 256 * MiB}) {
    expect_one_request_is_reserved(pool_resource{device}, bytes);
    expect_one_request_is_reserved(pool_resource{device, {.release_threshold = 0}}, bytes);
    expect_one_request_is_reserved(pool_resource{gpumem::cuda_resource{device}}, bytes);
    expect_one_request_is_reserved(pool_resource{device, {.effort = 1}}, bytes);
  }
}

TEST_F(dead_streams, blocks_freed_by_their_destructor_leave_no_memory_behind) {
  pool_resource pool{device};
  for (int i = 0; i < 100; ++i) {
    request_stream const s;
    auto const block = pool.acquire(s, 256 * MiB).wait();
  }
  EXPECT_LE(pool.statistics().peak_reserved, 512 * MiB);
}

TEST_F(dead_streams, adopted_streams_leave_no_memory_behind) {
  pool_resource pool{device};
  for (int i = 0; i < 100; ++i) {
    request_stream const s;
    auto const promised = gpumem::stream::adopt(stream_ref{s}.get());
    serve(pool, promised, 256 * MiB);
  }
  EXPECT_LE(pool.statistics().peak_reserved, 512 * MiB);
}

TEST_F(dead_streams, ended_threads_leave_no_memory_of_their_default_streams_behind) {
  for (auto const handle : {CUstream{}, CU_STREAM_PER_THREAD}) {
    pool_resource pool{device};
    simulator::checked checked{pool};
    auto const before = timelines();
    for (int i = 0; i < 200; ++i) {
      std::thread{[&] {
        gpumem::device_guard const here{device};
        serve(checked, stream_ref{handle}, 256 * MiB);
      }}.join();
      simulator::run_until_idle();
    }
    EXPECT_LE(pool.statistics().peak_reserved, 512 * MiB);
    EXPECT_LE(timelines() - before, 4u);
  }
}

// Many timelines are free to be reused; the timeline of the thread that ended last owns the memory.
TEST_F(dead_streams, many_ended_threads_leave_no_memory_behind) {
  constexpr int many = 100;
  pool_resource pool{device};
  for (auto const handle : {CUstream{}, CU_STREAM_PER_THREAD}) {
    std::barrier all_have_used_it{many};
    std::vector<std::thread> threads;
    for (int i = 0; i < many; ++i) {
      threads.emplace_back([&] {
        gpumem::device_guard const here{device};
        serve(pool, stream_ref{handle}, 4096);
        all_have_used_it.arrive_and_wait();
      });
    }
    for (auto& each : threads) each.join();
    simulator::run_until_idle();
    for (int i = 0; i < 100; ++i) {
      std::thread{[&] {
        gpumem::device_guard const here{device};
        serve(pool, stream_ref{handle}, 256 * MiB);
      }}.join();
      simulator::run_until_idle();
    }
  }
  EXPECT_LE(pool.statistics().peak_reserved, 1024 * MiB);
}

TEST_F(dead_streams, request_at_the_limit_is_granted_beside_a_long_kernel) {
  for (bool const beside : {false, true}) {
    pool_resource pool{device, {.limit = 1024 * MiB}};
    begin_long();
    gpumem::stream busy{device};
    if (beside) run_long(busy);
    for (int i = 0; i < 5; ++i) {
      auto const s = make_foreign();
      auto const p = pool.try_allocate(s, 600 * MiB);
      ASSERT_TRUE(p) << "request " << i;
      simulator::work(s, {simulator::write(*p, 600 * MiB)});
      pool.deallocate(s, *p, 600 * MiB);
      gpumem::driver_api::driver().stream_synchronize(s.get());
      destroy(s);
    }
    EXPECT_EQ(gpumem::driver_api::driver_calls("cuCtxSynchronize"), 0u);
    end_long();
    simulator::run_until_idle();
  }
}

// Destructors free many blocks in a row, and each free may be the stream's last.
TEST_F(dead_streams, each_free_of_a_burst_records_an_event) {
  pool_resource pool{device, {.limit = 1024 * MiB}};
  auto const s = make_foreign();
  std::vector<void*> blocks;
  while (auto const p = pool.try_allocate(s, 10 * MiB)) blocks.push_back(*p);
  EXPECT_FALSE(pool.try_allocate(lasting, 10 * MiB));
  for (auto* const p : blocks) {
    auto const records = gpumem::driver_api::driver_calls("cuEventRecord");
    pool.deallocate(s, p, 10 * MiB);
    EXPECT_GE(gpumem::driver_api::driver_calls("cuEventRecord"), records + 1);
  }
  gpumem::driver_api::driver().stream_synchronize(s.get());
  destroy(s);
  auto const all = blocks.size() * 10 * MiB;
  EXPECT_TRUE(pool.try_allocate(lasting, all)) << "all its work is complete";
}

TEST_F(dead_streams, memory_of_a_hundred_frees_can_all_go_to_another_stream) {
  pool_resource pool{device, {.limit = 1024 * MiB}};
  auto const s = make_foreign();
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(pool.allocate(s, 8 * MiB));
  auto const reserved = pool.statistics().reserved;
  for (auto* const p : blocks) pool.deallocate(s, p, 8 * MiB);
  gpumem::driver_api::driver().stream_synchronize(s.get());
  destroy(s);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(pool.try_allocate(lasting, 8 * MiB));
  EXPECT_EQ(pool.statistics().reserved, reserved);
}

// 64 events behind a long kernel fill the timeline's ring of events.
TEST_F(dead_streams, full_event_ring_loses_no_free) {
  pool_resource pool{device};
  auto const s = make_foreign();
  run_long(s);
  auto& timeline = gpumem::extend::identify(s, device).identity().timeline();
  timeline.prepare();
  for (int i = 0; i < 70; ++i) timeline.record_later(s.get());
  serve(pool, s, 64 * MiB);
  destroy(s);
  end_long();
  simulator::run_until_idle();
  auto const reserved = pool.statistics().reserved;
  EXPECT_TRUE(pool.try_allocate(lasting, 64 * MiB));
  EXPECT_EQ(pool.statistics().reserved, reserved);
}

TEST_F(dead_streams, memory_of_a_running_dead_stream_is_not_given_to_the_next_with_its_handle) {
  pool_resource pool{device};
  simulator::checked checked{pool};
  auto const s = make_foreign();
  auto* const p = checked.allocate(s, 64 * MiB);
  run_long(s);
  simulator::work(s, {simulator::write(p, 64 * MiB)});
  checked.deallocate(s, p, 64 * MiB);
  destroy(s);
  auto const next = make_foreign();
  ASSERT_EQ(next.get(), s.get());
  EXPECT_NE(checked.allocate(next, 64 * MiB), p);
  end_long();
  simulator::run_until_idle();
  EXPECT_EQ(checked.allocate(next, 64 * MiB), p);
  destroy(next);
}

// Another stream's order after the first stream, and the user's event, say nothing about the next stream with the same
// handle.
TEST_F(dead_streams, order_after_a_dead_stream_is_no_order_after_the_next_with_its_handle) {
  pool_resource pool{device};
  simulator::checked checked{pool};
  auto const s = make_foreign();
  gpumem::event told{device};
  serve(checked, s, 1 * MiB);
  told.record(s);
  lasting.wait(told);
  auto& timeline = gpumem::extend::identify(s, device).identity().timeline();
  simulator::run_until_idle();
  destroy(s);
  auto const next = make_foreign();
  ASSERT_EQ(&gpumem::extend::identify(next, device).identity().timeline(), &timeline)
      << "the next stream reuses the timeline";
  auto* const p = checked.allocate(next, 64 * MiB);
  simulator::work(next, {simulator::write(p, 64 * MiB)});
  checked.deallocate(next, p, 64 * MiB);
  lasting.wait(told);
  EXPECT_NE(checked.allocate(lasting, 64 * MiB), p) << "not ordered after the next stream's use";
  destroy(next);
}

// The next stream is not ordered after the work for which the first one waited.
TEST_F(dead_streams, next_stream_with_a_handle_inherits_no_order) {
  pool_resource pool{device};
  simulator::checked checked{pool};
  auto const s = make_foreign();
  auto* const p = checked.allocate(lasting, 64 * MiB);
  run_long(lasting);
  simulator::work(lasting, {simulator::write(p, 64 * MiB)});
  checked.deallocate(lasting, p, 64 * MiB);
  gpumem::event told{device};
  told.record(lasting);
  auto const key = gpumem::extend::identify(s, device);
  told.make_wait(s);
  ASSERT_TRUE(key.identity().timeline().ordered_after(lasting.key().identity().timeline(),
                                                      lasting.key().identity().timeline().current_epoch() - 1));
  destroy(s);
  auto const next = make_foreign();
  ASSERT_EQ(gpumem::extend::identify(next, device), key) << "the next stream reuses the timeline";
  EXPECT_NE(checked.allocate(next, 64 * MiB), p);
  end_long();
  simulator::run_until_idle();
  destroy(next);
}

TEST_F(dead_streams, timeline_of_a_live_block_serves_no_other_stream) {
  pool_resource pool{device};
  std::optional<gpumem::allocation> block;
  std::optional<gpumem::extend::stream_key> key;
  std::thread{[&] {
    gpumem::device_guard const here{device};
    block = pool.acquire(stream_ref{CU_STREAM_PER_THREAD}, 1 * MiB).wait();
    key = gpumem::extend::identify(stream_ref{CU_STREAM_PER_THREAD}, device);
  }}.join();
  simulator::run_until_idle();
  for (int i = 0; i < 4; ++i) {
    std::thread{[&] {
      gpumem::device_guard const here{device};
      EXPECT_NE(gpumem::extend::identify(stream_ref{CU_STREAM_PER_THREAD}, device), *key);
    }}.join();
  }
  block.reset();
  EXPECT_TRUE(pool.try_allocate(lasting, 1 * MiB));
  EXPECT_EQ(pool.statistics().upstream_allocations, 1u)
      << "all work of a thread that has ended is covered by its last event";
}

// A free that no event covers keeps its memory reserved. This happens to at most one free in 64; once enough memory is
// kept, each free records an event.
TEST_F(dead_streams, memory_freed_without_an_event_is_bounded) {
  constexpr int frees = 1000;
  pool_resource pool{device};
  auto const live = 100 * std::size_t{4096};
  for (int i = 0; i < 200; ++i) {
    request_stream const s;
    for (int k = 0; k < frees; ++k) serve(pool, s, 4096);
  }
  simulator::run_until_idle();
  auto const before = timelines();
  for (int i = 0; i < 200; ++i) {
    request_stream const s;
    for (int k = 0; k < frees; ++k) serve(pool, s, 4096);
  }
  EXPECT_LE(timelines() - before, 2u) << "streams are known to be destroyed, so each free records an event";
  EXPECT_LE(pool.statistics().peak_reserved, live + 32 * MiB);
}

TEST_F(dead_streams, long_lived_stream_records_an_event_at_one_free_in_64) {
  gpumem::detail::note_uncovered_memory(gpumem::detail::uncovered_memory::dead_streams, false); // of earlier tests
  pool_resource pool{device};
  auto const s = make_foreign();
  auto const of = [&](int frees) {
    auto const before = gpumem::driver_api::driver_calls("cuEventRecord");
    for (int i = 0; i < frees; ++i) pool.deallocate(s, pool.allocate(s, 4096), 4096);
    return gpumem::driver_api::driver_calls("cuEventRecord") - before;
  };
  EXPECT_EQ(of(64), 64u) << "each of the first frees may be the last";
  of(4096 - 64);
  auto const records = of(64 * 100);
  EXPECT_GE(records, 100u);
  EXPECT_LE(records, 102u);
  destroy(s);
}

// The cost of calls after many streams: driver calls, host allocations, and the number of timelines to visit.
TEST_F(dead_streams, calls_need_no_more_work_after_35000_streams_and_1000_threads) {
  constexpr int calls_of_each = 20;
  struct cost {
    std::uint64_t driver_calls = 0;
    std::size_t allocations = 0;
  };
  pool_resource pool{device};
  auto const request = [&] { serve(pool, request_stream{}, 4096); };
  auto const thread = [&](CUstream on) {
    std::thread{[&] {
      gpumem::device_guard const here{device};
      serve(pool, stream_ref{on}, 4096);
    }}.join();
    simulator::run_until_idle();
  };
  auto const costs = [&] {
    std::vector<cost> all;
    auto const add = [&](auto call) {
      auto const calls = gpumem::driver_api::driver_calls();
      auto const allocations = test::host_allocations();
      for (int i = 0; i < calls_of_each; ++i) call();
      all.push_back({gpumem::driver_api::driver_calls() - calls, test::host_allocations() - allocations});
    };
    add(request);
    add([&] { serve(pool, lasting, 5 * MiB); });
    add([&] { pool.statistics(); });
    add([&] { pool.trim(std::size_t{1} << 40); });
    return all;
  };
  for (int i = 0; i < 200; ++i) request();
  for (auto const on : {CUstream{}, CU_STREAM_PER_THREAD}) thread(on);
  costs();
  auto const first = costs();
  auto const before = timelines();
  for (int i = 0; i < 35'000; ++i) request();
  for (int i = 0; i < 500; ++i) {
    for (auto const on : {CUstream{}, CU_STREAM_PER_THREAD}) thread(on);
  }
  auto const last = costs();
  for (std::size_t i = 0; i < first.size(); ++i) {
    // one more per call at most: the stream that was served last may be a different one
    EXPECT_LE(last[i].driver_calls, first[i].driver_calls + calls_of_each) << "call " << i;
    EXPECT_LE(last[i].allocations, first[i].allocations + calls_of_each) << "call " << i;
  }
  EXPECT_LE(timelines() - before, 4u);
}

TEST_F(dead_streams, more_streams_can_be_adopted_than_the_table_holds) {
  constexpr std::size_t many = 5000;
  std::vector<stream_ref> streams;
  for (std::size_t i = 0; i < many; ++i) streams.push_back(make_foreign());
  pool_resource pool{device};
  for (auto const s : streams) {
    auto const promised = gpumem::stream::adopt(s.get());
    EXPECT_EQ(gpumem::extend::identify(s, device), promised.key());
    pool.deallocate(promised, pool.allocate(promised, 4096), 4096);
  }
  auto const before = timelines();
  for (auto const s : streams) EXPECT_NO_THROW(gpumem::extend::identify(s, device));
  EXPECT_EQ(timelines(), before) << "each timeline is found again";
  for (auto const s : streams) destroy(s);
}

} // namespace
