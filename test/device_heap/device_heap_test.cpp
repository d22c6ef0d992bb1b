// Heaps for kernels: sizes, options, the order of streams, reset, and what kernels of one thread get.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"
#include "one_lane.hpp"

#include <gpumem/device_heap.hpp>
#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <type_traits>
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

class device_heap : public gpumem_test::heap_fixture {};

TEST_F(device_heap, kernels_get_all_of_it_and_give_it_back) {
  pool r{device};
  heap h{r, a, {.bytes = 4 * MiB, .reserve = GiB}};
  EXPECT_EQ(h.bytes(), 4 * MiB);
  EXPECT_EQ(h.reserved_addresses(), GiB);
  for (std::size_t const bytes : {16, 24, 4096, 65536}) {
    std::vector<void*> blocks;
    fill_on(a, h, bytes, blocks);
    auto const full = read(a, h);
    std::size_t const each = bytes == 24 ? 32 : bytes;
    EXPECT_EQ(blocks.size(), 4 * MiB / each);
    EXPECT_EQ(std::set(blocks.begin(), blocks.end()).size(), blocks.size());
    EXPECT_EQ(full.bytes, 4 * MiB);
    EXPECT_EQ(full.live, blocks.size());
    EXPECT_EQ(full.live_bytes, 4 * MiB);
    EXPECT_EQ(full.free, 0u);
    EXPECT_EQ(full.largest_failed, bytes);
    auto const used = std::ranges::find(full.classes, each, &gpumem::device_heap_statistics::size_class::bytes);
    ASSERT_NE(used, full.classes.end());
    EXPECT_EQ(used->live, blocks.size());
    EXPECT_EQ(used->in_use, 4 * MiB);
    bool kept = true;
    kernel(a, h, [&](heap_thread&) {
      for (std::size_t i = 0; i < blocks.size(); ++i)
        for (std::size_t n = 0; n < std::min(bytes, stamped); ++n)
          kept = kept && static_cast<unsigned char*>(blocks[i])[n] == (i & 255);
    });
    free_on(a, h, blocks);
    auto const empty = read(a, h);
    EXPECT_TRUE(kept) << "blocks overlap";
    EXPECT_EQ(empty.live, 0u);
    EXPECT_EQ(empty.bad_frees, 0u);
  }
  EXPECT_EQ(read(a, h).failed, 4u);
}

TEST_F(device_heap, statistics_count_large_blocks_and_bad_frees) {
  pool r{device};
  heap h{r, a, {.bytes = 8 * MiB}};
  EXPECT_EQ(h.reserved_addresses(), 8 * MiB) << "as many as bytes";
  void *large = nullptr, *small = nullptr;
  kernel(a, h, [&](heap_thread& thread) {
    large = thread.allocate(MiB + 1);
    small = thread.allocate(100);
    EXPECT_EQ(thread.allocate(0), nullptr);
    EXPECT_EQ(thread.allocate(SIZE_MAX), nullptr);
    EXPECT_EQ(thread.allocate(8 * MiB + 1), nullptr);
    thread.deallocate(nullptr);
    thread.deallocate(&large);
    thread.deallocate(static_cast<std::byte*>(small) + 16);
    thread.deallocate(small);
    thread.deallocate(static_cast<std::byte*>(large) + 16);
  });
  auto const seen = read(a, h);
  EXPECT_EQ(seen.large, 1u);
  EXPECT_EQ(seen.large_bytes, MiB + slab);
  EXPECT_EQ(seen.live, 1u);
  EXPECT_EQ(seen.live_bytes, MiB + slab);
  EXPECT_EQ(seen.failed, 2u);
  EXPECT_EQ(seen.largest_failed, SIZE_MAX);
  EXPECT_EQ(seen.bad_frees, 3u);
  EXPECT_EQ(seen.bad_free, reinterpret_cast<std::uintptr_t>(&large));
}

// Without caches, as with the macro GPUMEM_DEVICE_HEAP_CHECKS.
TEST_F(device_heap, second_frees_are_found_without_caches) {
  pool r{device};
  heap h{r, a, {.bytes = 8 * MiB}};
  void* first = nullptr;
  simulator::work(a, {}, {}, [&, view = h.view()] {
    gpumem_test::checked_heap_thread thread{view};
    auto* const kept = thread.allocate(100);
    first = thread.allocate(100);
    auto* const large = thread.allocate(MiB);
    for (int i = 0; i < 2; ++i) thread.deallocate(first);
    for (int i = 0; i < 3; ++i) thread.deallocate(large);
    thread.deallocate(kept);
    thread.deallocate(kept);
  });
  auto const seen = read(a, h);
  EXPECT_EQ(seen.live, 0u);
  EXPECT_EQ(seen.bad_frees, 4u);
  EXPECT_EQ(seen.bad_free, reinterpret_cast<std::uintptr_t>(first));
}

TEST_F(device_heap, memory_counts_in_the_pool_by_name) {
  pool r{device, {.limit = 64 * MiB}};
  heap h{r, a, {.bytes = 3 * MiB, .reserve = GiB, .name = "nodes"}};
  EXPECT_EQ(h.bytes(), 4 * MiB) << "whole units";
  std::size_t data = 0, metadata = 0;
  for (auto const& each : r.copy_memory().blocks) {
    auto const label = each.label ? gpumem::detail::label_text(each.label) : "";
    if (label == "nodes") data += each.bytes;
    if (label == "nodes metadata") metadata += each.bytes;
  }
  EXPECT_EQ(data, 4 * MiB);
  EXPECT_EQ(metadata, (metadata_of(h) + 2 * MiB - 1) / (2 * MiB) * 2 * MiB);
  EXPECT_EQ(r.statistics().lent, data + metadata);
  EXPECT_EQ(reason_of(h.try_grow_to(a, 65 * MiB)), outcome::exhausted);
}

TEST_F(device_heap, grows_between_kernels_at_the_same_addresses) {
  pool r{device};
  heap h{r, a, {.bytes = 2 * MiB, .reserve = GiB}};
  auto const old = h.view();
  std::vector<void*> blocks;
  fill_on(a, h, 4096, blocks);
  EXPECT_EQ(read(a, h).live, 512u);
  EXPECT_TRUE(h.try_grow_to(a, 6 * MiB - 1));
  EXPECT_EQ(h.bytes(), 6 * MiB);
  EXPECT_TRUE(h.try_grow_to(a, MiB)) << "less than the size changes nothing";
  gpumem::sync_wait(h.grow_to(a, 100 * MiB));
  EXPECT_EQ(h.bytes(), 100 * MiB);
  EXPECT_EQ(h.view().data(), old.data());
  EXPECT_EQ(h.view().metadata(), old.metadata());
  simulator::work(a, {}, {}, [&] { // an older view has the new memory too
    heap_thread thread{old};
    while (auto* const block = thread.allocate(4096)) blocks.push_back(block);
  });
  EXPECT_EQ(read(a, h).live, 100 * MiB / 4096);
  EXPECT_EQ(std::set(blocks.begin(), blocks.end()).size(), 100 * MiB / 4096);
  EXPECT_EQ(reason_of(h.try_grow_to(a, GiB + 1)), outcome::too_large);
  EXPECT_TRUE(is_consistent(r));
}

// A growth whose work has not run yet gives kernels nothing: the device reports work on memory that is not mapped.
TEST_F(device_heap, growth_is_valid_in_the_order_of_its_stream) {
  pool r{device};
  heap h{r, a, {.bytes = 2 * MiB, .reserve = GiB}};
  std::vector<void*> first, second;
  fill_on(a, h, slab, first);
  ASSERT_TRUE(h.try_grow_to(a, 4 * MiB));
  fill_on(a, h, slab, second);
  EXPECT_EQ(read(a, h).live, 64u);
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(second.size(), 32u);
}

TEST_F(device_heap, reset_frees_all_blocks_in_the_order_of_its_stream) {
  pool r{device};
  heap h{r, a, {.bytes = 4 * MiB, .reserve = GiB}};
  std::vector<void*> before, after;
  fill_on(a, h, 1000, before);
  h.reset(a);
  fill_on(a, h, 3000, after, 3);
  auto const seen = read(a, h);
  EXPECT_EQ(before.size(), 4096u);
  EXPECT_EQ(after.size(), 3u);
  EXPECT_EQ(seen.live, 3u);
  EXPECT_EQ(seen.live_bytes, 3u * 4096);
  EXPECT_EQ(seen.failed, 0u) << "a count since the reset";
  ASSERT_TRUE(h.try_grow_to(a, 8 * MiB));
  h.reset(a);
  after.clear();
  fill_on(a, h, slab, after);
  EXPECT_EQ(read(a, h).live, 128u);
}

TEST_F(device_heap, captured_reset_runs_at_each_launch) {
  pool r{device};
  heap h{r, a, {.bytes = 2 * MiB, .reserve = GiB}};
  a.synchronize();
  a.begin_capture();
  h.reset(a);
  CUgraph graph = nullptr;
  ASSERT_EQ(gpumem::driver_api::driver().stream_end_capture(a.get(), &graph), CUDA_SUCCESS);
  gpumem::stream const ended{std::exchange(a, gpumem::stream{device})}; // knows of the capture
  CUgraphExec executable = nullptr;
  gpumem_test::driver_function<decltype(cuGraphInstantiateWithFlags)>("cuGraphInstantiateWithFlags")(&executable, graph,
                                                                                                     0);
  for (int i = 0; i < 2; ++i) {
    std::vector<void*> blocks;
    fill_on(b, h, slab, blocks);
    EXPECT_EQ(read(b, h).live, 32u) << i;
    gpumem_test::driver_function<decltype(cuGraphLaunch)>("cuGraphLaunch")(executable, b.get());
    EXPECT_EQ(read(b, h).live, 0u) << i;
  }
  gpumem_test::driver_function<decltype(cuGraphExecDestroy)>("cuGraphExecDestroy")(executable);
  gpumem::driver_api::driver().graph_destroy(graph);
}

TEST_F(device_heap, captures_refuse_growth_and_statistics_and_go_on) {
  pool r{device};
  heap h{r, a, {.bytes = 4 * MiB, .reserve = GiB}};
  ASSERT_TRUE(h.try_grow_to(a, 64 * MiB)); // maps 8 MiB in advance
  a.synchronize();
  auto const lent = r.statistics().lent;
  for (bool const raw : {false, true}) {
    EXPECT_EQ(read(a, h).live, 0u);
    if (raw) {
      gpumem::driver_api::check(
          gpumem::driver_api::driver().stream_begin_capture(a.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
    } else {
      a.begin_capture();
    }
    EXPECT_EQ(reason_of(h.try_grow_to(a, 66 * MiB)), outcome::capture_unsupported);
    growth const grows{h.grow_to(a, 66 * MiB, here())};
    EXPECT_EQ(grows.ended(), outcome::capture_unsupported);
    growth const reads{h.statistics(a, {.resume_on = &executor})};
    EXPECT_EQ(reads.ended(), outcome::capture_unsupported);
    EXPECT_THROW((heap{r, a, {.bytes = 4 * MiB}}), gpumem::acquire_error);
    expect_unchanged(r, lent, h, 64 * MiB);
    // Other streams go on beside the capture, and do not end it.
    EXPECT_EQ(read(b, h).live, 0u);
    CUgraph graph = nullptr;
    EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(a.get(), &graph), CUDA_SUCCESS);
    std::size_t nodes = 1;
    gpumem_test::driver_function<decltype(cuGraphGetNodes)>("cuGraphGetNodes")(graph, nullptr, &nodes);
    EXPECT_EQ(nodes, 0u) << "nothing was captured";
    gpumem::driver_api::driver().graph_destroy(graph);
    if (!raw) {
      gpumem::stream const ended{std::move(a)}; // ends the capture that the object knows of
      a = gpumem::stream{device};
    }
  }
}

TEST_F(device_heap, is_moved_and_can_be_empty) {
  pool r{device};
  static_assert(std::is_nothrow_move_constructible_v<heap> && std::is_nothrow_move_assignable_v<heap>);
  static_assert(!std::is_copy_constructible_v<heap>);
  heap one{r, a, {.bytes = 4 * MiB}};
  auto* const data = one.view().data();
  heap two{std::move(one)}, three;
  EXPECT_TRUE(two);
  EXPECT_FALSE(one);
  EXPECT_EQ(one.bytes() + one.reserved_addresses(), 0u);
  EXPECT_EQ(text_of<std::invalid_argument>([&] { static_cast<void>(one.view()); }),
            "gpumem: device_heap: the heap is empty; was it moved from?");
  EXPECT_THROW(one.reset(a), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(one.grow_to(a, 1)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(three.statistics(a)), std::invalid_argument);
  auto const failed = three.try_grow_to(a, 1);
  EXPECT_EQ(reason_of(failed), outcome::invalid_argument);
  EXPECT_EQ(failed.error().code, static_cast<int>(gpumem::broken_rule::moved_from));
  three = std::move(two);
  EXPECT_EQ(three.view().data(), data);
  three = heap{};
  EXPECT_EQ(r.statistics().lent, 0u);
}

TEST_F(device_heap, wrong_options_are_refused) {
  pool r{device, {.limit = GiB}};
  using wrong = std::invalid_argument;
  auto const make = [&](gpumem::device_heap_options const& options) { return [&] { heap{r, a, options}; }; };
  EXPECT_EQ(text_of<wrong>(make({.name = "x"})),
            "gpumem: x: a device_heap needs memory: set device_heap_options::bytes or reserve");
  EXPECT_EQ(text_of<wrong>(make({.bytes = 6, .reserve = 5, .name = "x"})),
            "gpumem: x: the initial 6 bytes exceed the 5 bytes of addresses");
  EXPECT_EQ(text_of<wrong>(make({.reserve = 1024 * GiB + 1, .name = "x"})),
            "gpumem: x: 1099511627777 bytes of addresses exceed the 1099511627776 bytes that a heap can have");
  EXPECT_THROW(make({.bytes = SIZE_MAX})(), wrong);
  EXPECT_THROW(make({.bytes = 2 * GiB})(), gpumem::out_of_memory) << "more than the limit";
  pool moved{std::move(r)};
  EXPECT_EQ(text_of<wrong>(make({.bytes = MiB, .name = "x"})), "gpumem: x: the pool is empty; was it moved from?");
  pool chunks{device, {.pages = false}};
  EXPECT_THROW((heap{chunks, a, {.bytes = MiB}}), wrong) << "a pool without pages";
  EXPECT_EQ(moved.statistics().lent, 0u);
  heap const none{moved, a, {.reserve = GiB}};
  EXPECT_EQ(none.bytes(), 0u) << "a heap may begin without memory";
  EXPECT_EQ(text_of<gpumem::out_of_memory>([&] {
              heap h{moved, a, {.reserve = 4 * MiB, .name = "x"}};
              gpumem::sync_wait(h.grow_to(a, 4 * MiB + 1));
            }),
            "gpumem: x: a growth to 4194305 bytes exceeds the 4194304 bytes of reserved addresses");
}

// Also the largest heap, of which the pool has no memory: addresses cost none.
TEST_F(device_heap, largest_heap_begins_small) {
  pool r{device};
  heap h{r, a, {.bytes = 2 * MiB, .reserve = 1024 * GiB}};
  EXPECT_EQ(h.view().layout().slabs, 1u << 24);
  std::vector<void*> blocks;
  fill_on(a, h, 64, blocks);
  EXPECT_EQ(read(a, h).live, 2 * MiB / 64);
  EXPECT_LT(r.statistics().lent, 128 * MiB);
}

} // namespace
