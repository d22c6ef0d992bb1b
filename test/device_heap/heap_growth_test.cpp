// Growths of heaps for kernels that wait, fail and run at the same time, and statistics whose task ends early.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"
#include "../support/failing_new.hpp"
#include "one_lane.hpp"

#include <gpumem/device_heap.hpp>
#include <gpumem/pool_options.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
import gpumem.growable;
import gpumem.device_heap;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"
#include "../growable/growable_fixture.hpp"
#include "heap_fixture.hpp"

namespace {

using gpumem_test::heap_thread;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

class heap_growth : public gpumem_test::heap_fixture {
protected:
  // Returns how many blocks of a slab kernels get.
  std::size_t slabs_of(heap& of) {
    std::vector<void*> blocks;
    fill_on(a, of, slab, blocks);
    a.synchronize();
    free_on(a, of, blocks);
    EXPECT_EQ(read(a, of).live, 0u);
    return blocks.size();
  }
};

TEST_F(heap_growth, waits_in_the_line_of_the_pool) {
  pool r{device, {.limit = 64 * MiB, .max_overtakes = 0}};
  heap h{r, a, {.bytes = 2 * MiB, .reserve = GiB}};
  auto block = r.acquire(b, 40 * MiB).wait();
  growth first{h.grow_to(a, 30 * MiB, here())};
  request second{*this, r, b, 10 * MiB};
  EXPECT_FALSE(first.ended());
  EXPECT_FALSE(second.ended()) << "overtook the heap";
  EXPECT_EQ(h.bytes(), 2 * MiB);
  EXPECT_EQ(slabs_of(h), 32u) << "kernels go on meanwhile";
  block.reset();
  run_until_ended(first);
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(h.bytes(), 30 * MiB);
  run_until([&] { return second.ended().has_value(); });
  second.block().reset();
  EXPECT_EQ(slabs_of(h), 480u);
  EXPECT_LE(r.statistics().peak_reserved, 64 * MiB);
}

// A heap of 16 GiB has 129 MiB of metadata, which a growth gets first and a failed one gives back.
TEST_F(heap_growth, failure_leaves_the_heap_as_it_was) {
  pool r{device, {.limit = GiB}};
  heap h{r, a, {.bytes = 4 * MiB, .reserve = 16 * GiB}};
  auto const lent = r.statistics().lent;
  EXPECT_EQ(reason_of(h.try_grow_to(a, 2 * GiB)), outcome::too_large);
  expect_unchanged(r, lent, h, 4 * MiB);
  auto block = r.acquire(b, 600 * MiB).wait();
  EXPECT_EQ(reason_of(h.try_grow_to(a, 500 * MiB)), outcome::exhausted);
  expect_unchanged(r, lent, h, 4 * MiB);

  std::stop_source source;
  growth stopped{h.grow_to(a, 500 * MiB, here(), source.get_token())};
  EXPECT_FALSE(stopped.ended());
  source.request_stop();
  run_all();
  EXPECT_EQ(stopped.ended(), outcome::stopped);
  expect_unchanged(r, lent, h, 4 * MiB);

  auto const late = std::chrono::steady_clock::now() + std::chrono::milliseconds{2};
  EXPECT_THROW(gpumem::sync_wait(h.grow_to(a, 500 * MiB, {.deadline = late})), gpumem::acquire_error);
  expect_unchanged(r, lent, h, 4 * MiB);

  growth destroyed{h.grow_to(a, 500 * MiB, here())};
  destroyed.destroy();
  expect_unchanged(r, lent, h, 4 * MiB);
  block.reset();
  b.synchronize();
  EXPECT_TRUE(h.try_grow_to(a, 500 * MiB));
  EXPECT_EQ(slabs_of(h), 8000u);
}

// Otherwise the failure of one growth would unmap the metadata that another one has mapped.
TEST_F(heap_growth, failure_of_one_keeps_what_another_needs) {
  pool r{device, {.limit = GiB}};
  heap h{r, a, {.bytes = 4 * MiB, .reserve = 16 * GiB}};
  auto const lent = r.statistics().lent;
  auto block = r.acquire(b, 600 * MiB).wait();
  std::stop_source source;
  growth large{h.grow_to(a, 900 * MiB, here(), source.get_token())}, small{h.grow_to(a, 500 * MiB, here())};
  auto const both = r.statistics().lent;
  source.request_stop();
  run_all();
  EXPECT_EQ(large.ended(), outcome::stopped);
  EXPECT_EQ(r.statistics().lent, both);
  block.reset();
  run_until_ended(small);
  EXPECT_EQ(small.ended(), outcome::granted);
  EXPECT_EQ(slabs_of(h), 8000u);
  EXPECT_LT(r.statistics().lent, lent + 496 * MiB + 40 * MiB) << "the metadata of 900 MiB went back";
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(heap_growth, several_may_run_at_the_same_time) {
  pool r{device, {.limit = GiB}};
  heap h{r, a, {.bytes = 4 * MiB, .reserve = 16 * GiB}};
  auto block = r.acquire(b, 900 * MiB).wait();
  growth one{h.grow_to(a, 300 * MiB, here())}, two{h.grow_to(a, 500 * MiB, here())};
  growth three{h.grow_to(a, 200 * MiB, here())};
  block.reset();
  for (auto* const each : {&one, &two, &three}) {
    run_until_ended(*each);
    EXPECT_EQ(each->ended(), outcome::granted);
  }
  EXPECT_EQ(h.bytes(), 500 * MiB);
  EXPECT_EQ(slabs_of(h), 8000u);
}

TEST_F(heap_growth, capture_that_begins_meanwhile_ends_it) {
  pool r{device, {.limit = 64 * MiB}};
  heap h{r, a, {.bytes = 2 * MiB, .reserve = GiB}};
  a.synchronize();
  auto block = r.acquire(b, 40 * MiB).wait();
  growth waits{h.grow_to(a, 30 * MiB, here())};
  EXPECT_FALSE(waits.ended());
  a.begin_capture();
  block.reset();
  run_until_ended(waits);
  EXPECT_EQ(waits.ended(), outcome::capture_unsupported);
  EXPECT_EQ(h.bytes(), 2 * MiB);
  CUgraph graph = nullptr;
  EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(a.get(), &graph), CUDA_SUCCESS);
  gpumem::driver_api::driver().graph_destroy(graph);
  gpumem::stream const ended{std::exchange(a, gpumem::stream{device})}; // knows of the capture
  EXPECT_TRUE(h.try_grow_to(b, 30 * MiB));
  EXPECT_EQ(h.bytes(), 30 * MiB);
}

// From each driver call on, all calls of that function fail. The heap is then as it was, and no memory is left behind.
TEST_F(heap_growth, refusals_of_the_driver_leave_nothing) {
  pool r{device, {.limit = 512 * MiB}};
  heap h{r, a, {.bytes = 4 * MiB, .reserve = 16 * GiB}};
  a.synchronize();
  auto const lent = r.statistics().lent, reserved = r.statistics().reserved;
  auto const refused_from = [&](char const* call, unsigned nth, auto does) {
    // A fault that fires does not count for those after it, so these fire one after the other.
    for (unsigned i = 0; i < 100; ++i) simulator::fail_call(call, nth + i, CUDA_ERROR_NOT_PERMITTED);
    bool const granted{does()};
    simulator::run_until_idle();
    simulator::reset({.devices = 2, .mode = simulator::stepping::manual}); // forgets the faults
    a.synchronize();
    return !granted;
  };
  for (auto const* const call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    unsigned refused = 0;
    while (refused_from(call, refused + 1, [&] { return h.try_grow_to(a, 400 * MiB); })) {
      expect_unchanged(r, lent, h, 4 * MiB);
      r.trim();
      EXPECT_EQ(r.statistics().reserved, reserved) << call << refused;
      ++refused;
    }
    EXPECT_GE(refused, 1u) << call;
    EXPECT_EQ(slabs_of(h), 6400u);
    h = {};
    a.synchronize();
    r.trim();
    h = heap{r, a, {.bytes = 4 * MiB, .reserve = 16 * GiB}};
    a.synchronize();
  }
  // The construction makes six fills.
  for (unsigned nth = 1; nth <= 6; ++nth)
    EXPECT_TRUE(refused_from("cuMemsetD8Async", nth, [&] {
      try {
        heap const made{r, a, {.bytes = 4 * MiB}};
      } catch (gpumem::cuda_error const&) { return false; }
      return true;
    })) << nth;
  expect_unchanged(r, lent, h, 4 * MiB);
  // A growth makes five. After the third, kernels can use the memory.
  for (unsigned nth = 1; nth <= 3; ++nth) {
    EXPECT_TRUE(refused_from("cuMemsetD8Async", nth, [&] { return h.try_grow_to(a, 400 * MiB); })) << nth;
    expect_unchanged(r, lent, h, 4 * MiB);
    EXPECT_EQ(slabs_of(h), 64u);
  }
  EXPECT_TRUE(refused_from("cuMemsetD8Async", 4, [&] { return h.try_grow_to(a, 400 * MiB); }));
  EXPECT_EQ(h.bytes(), 400 * MiB) << "the memory stays";
  EXPECT_TRUE(h.try_grow_to(a, 402 * MiB));
  EXPECT_EQ(slabs_of(h), 6432u);
  EXPECT_TRUE(refused_from("cuMemsetD8Async", 3, [&] {
    try {
      h.reset(a);
    } catch (gpumem::cuda_error const&) { return false; }
    return true;
  }));
  h.reset(a);
  EXPECT_EQ(slabs_of(h), 6432u);
}

// Each host allocation fails in turn, alone and with all after it.
TEST_F(heap_growth, host_without_memory_leaves_the_heap_as_it_was) {
  if (!test::new_can_fail) GTEST_SKIP();
  pool r{device};
  heap h{r, a, {.bytes = 4 * MiB, .reserve = GiB}};
  a.synchronize();
  auto const lent = r.statistics().lent;
  int refusals = 0;
  for (auto const which : {test::failing::all, test::failing::only_one}) {
    for (int successes = 0;; ++successes, ++refusals) {
      bool refused = false;
      try {
        test::failing_new const none{successes, which};
        refused = reason_of(h.try_grow_to(a, 40 * MiB)) == outcome::exhausted;
        static_cast<void>(h.statistics(a));
        heap const other{r, a, {.bytes = 2 * MiB}};
      } catch (std::bad_alloc const&) { refused = true; }
      if (!refused) break;
      simulator::run_until_idle();
      if (h.bytes() == 4 * MiB) EXPECT_EQ(r.statistics().lent, lent) << successes;
      EXPECT_TRUE(is_consistent(r)) << successes;
    }
  }
  EXPECT_GT(refusals, 4);
  EXPECT_EQ(h.bytes(), 40 * MiB);
  EXPECT_EQ(slabs_of(h), 640u);
}

class heap_statistics : public gpumem_test::heap_fixture {
protected:
  class reading {
  public:
    reading(gpumem::task<gpumem::device_heap_statistics> what) : running_{test::start(run(std::move(what)))} {}
    std::optional<gpumem::device_heap_statistics> const& seen() const { return seen_; }
    void destroy() { running_.reset(); }

  private:
    gpumem::task<> run(gpumem::task<gpumem::device_heap_statistics> what) { seen_ = co_await std::move(what); }
    std::optional<gpumem::device_heap_statistics> seen_;
    std::optional<test::started> running_;
  };
};

TEST_F(heap_statistics, are_those_of_the_time_in_the_stream) {
  pool r{device};
  heap h{r, a, {.bytes = 4 * MiB}};
  std::vector<void*> blocks;
  fill_on(a, h, 256, blocks, 10);
  reading early{h.statistics(a, {.resume_on = &executor})};
  EXPECT_FALSE(early.seen());
  fill_on(a, h, 256, blocks, 25);
  reading later{h.statistics(a, {.resume_on = &executor})};
  EXPECT_EQ(blocks.size(), 0u) << "no call has waited for the stream";
  run_until([&] {
    simulator::run_until_idle();
    return early.seen() && later.seen();
  });
  EXPECT_EQ(early.seen()->live, 10u);
  EXPECT_EQ(later.seen()->live, 25u);
}

// The device still writes the copy after the end of its task, so its memory must not serve the next one before.
TEST_F(heap_statistics, task_may_be_destroyed_while_it_waits) {
  pool r{device};
  heap h{r, a, {.bytes = 4 * MiB}};
  std::vector<void*> blocks;
  fill_on(a, h, 256, blocks, 10);
  a.synchronize();
  simulator::work(a, {});
  reading abandoned{h.statistics(a, {.resume_on = &executor})};
  abandoned.destroy();
  reading kept{h.statistics(b, {.resume_on = &executor})};
  run_until([&] {
    simulator::run_until_idle();
    return kept.seen().has_value();
  });
  EXPECT_EQ(kept.seen()->live, 10u);
  reading last{h.statistics(a, {.resume_on = &executor})};
  last.destroy();
}

TEST_F(heap_statistics, refusals_of_the_driver_are_thrown) {
  pool r{device};
  heap h{r, a, {.bytes = 4 * MiB}};
  for (auto const* const call : {"cuMemHostAlloc", "cuMemcpyAsync", "cuEventRecord"}) {
    simulator::work(a, {}); // so that the wait needs an event
    for (unsigned i = 0; i < 100; ++i) simulator::fail_call(call, 1 + i, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_THROW(read(a, h), gpumem::cuda_error) << call;
    simulator::reset({.devices = 2, .mode = simulator::stepping::manual}); // forgets the faults
    a.synchronize();
  }
  EXPECT_EQ(read(a, h).live, 0u);
}

class heap_ends : public gpumem_test::heap_fixture {};

TEST_F(heap_ends, destructor_frees_in_the_order_of_the_last_stream) {
  pool r{device};
  for (int last = 0; last < 3; ++last) {
    {
      heap h{r, a, {.bytes = 4 * MiB, .reserve = GiB}};
      a.synchronize();
      if (last == 0) EXPECT_TRUE(h.try_grow_to(b, 2 * MiB));
      if (last == 1) h.reset(b);
      if (last == 2) EXPECT_EQ(read(b, h).live, 0u);
      kernel(b, h, [](heap_thread& thread) { EXPECT_NE(thread.allocate(100), nullptr); });
    }
    EXPECT_EQ(r.statistics().lent, 0u);
    EXPECT_EQ(r.trim(), 0u) << "the stream's work still runs";
    b.synchronize();
    r.trim();
    EXPECT_EQ(r.statistics().reserved, 0u);
  }
}

TEST_F(heap_ends, stream_of_another_device_is_refused) {
  pool r{device};
  gpumem::device const other{1};
  gpumem::stream far{other};
  heap h{r, a, {.bytes = 2 * MiB, .reserve = GiB}};
  auto const lent = r.statistics().lent;
  EXPECT_EQ(reason_of(h.try_grow_to(far, 64 * MiB)), outcome::invalid_argument);
  EXPECT_THROW(gpumem::sync_wait(h.grow_to(far, 64 * MiB)), std::invalid_argument);
  EXPECT_THROW(gpumem::sync_wait(h.statistics(far)), std::invalid_argument);
  EXPECT_THROW(h.reset(far), std::invalid_argument);
  EXPECT_THROW((heap{r, far, {.bytes = 2 * MiB}}), std::invalid_argument);
  expect_unchanged(r, lent, h, 2 * MiB);
  r.open_to(other);
  a.synchronize();
  EXPECT_TRUE(h.try_grow_to(far, 64 * MiB));
  h.reset(far);
  std::vector<void*> blocks;
  fill_on(far, h, slab, blocks);
  EXPECT_EQ(read(far, h).live, 1024u);
}

TEST_F(heap_ends, pool_may_end_before) {
  {
    std::optional<pool> r{std::in_place, device};
    heap h{*r, a, {.bytes = 4 * MiB, .reserve = GiB}};
    r->close();
    EXPECT_EQ(reason_of(h.try_grow_to(a, 128 * MiB)), outcome::closed);
    r.reset();
    std::vector<void*> blocks;
    fill_on(a, h, slab, blocks);
    EXPECT_EQ(read(a, h).live, 64u);
    h.reset(a);
  }
  EXPECT_TRUE(wait_for_device_bytes(before()));
}

TEST_F(heap_ends, forked_child_changes_nothing) {
  pool r{device};
  auto h = std::make_unique<heap>(r, a, gpumem::device_heap_options{.bytes = 4 * MiB, .reserve = GiB});
  auto const child = fork();
  if (child == 0) {
    auto const grown = h->try_grow_to(a, 64 * MiB);
    int refused = 0;
    try {
      h->reset(a);
    } catch (gpumem::cuda_error const&) { ++refused; }
    try {
      gpumem::sync_wait(h->statistics(a));
    } catch (gpumem::cuda_error const&) { ++refused; }
    h.reset();
    _exit(reason_of(grown) == outcome::device_lost && refused == 2 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(h->try_grow_to(a, 64 * MiB));
}

// Growths of several threads at a limit, so that some fail: the device reports it if a fill finds no page.
TEST_F(heap_ends, threads_share_a_heap) {
  pool r{device, {.limit = 512 * MiB}};
  heap h{r, a, {.bytes = 2 * MiB, .reserve = 16 * GiB}};
  a.synchronize();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      gpumem::device_guard const here{device};
      for (std::size_t n = 1; n <= 50; ++n) {
        static_cast<void>(h.try_grow_to(a, n * 4 * MiB));
        static_cast<void>(h.try_grow_to(a, (1000 + 100 * i) * MiB)); // fails
        if (n % 8 == 0) a.synchronize();
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(h.bytes(), 200 * MiB);
  std::vector<void*> blocks;
  simulator::work(a, {}, {}, [&, view = h.view()] {
    heap_thread thread{view};
    while (auto* const block = thread.allocate(slab)) blocks.push_back(block);
  });
  EXPECT_EQ(read(a, h).live, 3200u);
  EXPECT_LE(r.statistics().peak_reserved, 512 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

} // namespace
