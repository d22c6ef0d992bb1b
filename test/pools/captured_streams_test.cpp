// Pools and the streams that capture: memory used in a capture comes back, also from streams that are destroyed;
// captures begun on raw handles are seen; no call ends a capture.
// SPDX-License-Identifier: Apache-2.0
#include "captured_graphs.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <chrono>
#include <optional>
#include <thread>

import gpumem;

namespace {

using gpumem::outcome;
using gpumem::stream_ref;
using gpumem::driver_api::driver_calls;
using gpumem_test::begin_capture;
using gpumem_test::cu;
using gpumem_test::end_capture;
namespace simulator = gpumem::simulator;

// How memory is used on a stream that captures.
enum class use { recorded, freed, freed_of_its_own, recorded_in_a_scope };
inline constexpr std::array uses{use::recorded, use::freed, use::freed_of_its_own, use::recorded_in_a_scope};

class captured_streams : public gpumem_test::scope_test {
protected:
  static constexpr std::size_t size = 8 * MiB;

  void touch(stream_ref on) { pool.deallocate(on, pool.allocate(on, 64), 64); }
  // Allocates a block, then captures and uses or frees the block in the capture. Returns the block, which is free then.
  void* capture(stream_ref on, use how) {
    auto* const block = pool.allocate(how == use::freed_of_its_own ? on : stream_ref{a}, size);
    std::optional<gpumem::capture_scope> scope;
    if (how == use::recorded_in_a_scope) scope.emplace(pool.capture(memory, on));
    begin_capture(on);
    if (scope) pool.deallocate(on, pool.allocate(on, KiB), KiB);
    if (how == use::recorded || how == use::recorded_in_a_scope) {
      pool.record_use(block, on);
      pool.deallocate(a, block, size);
    } else {
      pool.deallocate(on, block, size);
    }
    end_capture(on);
    return block;
  }
  void destroy(stream_ref on) {
    simulator::run_until_idle();
    cu().stream_destroy(on.get());
  }
};

TEST_F(captured_streams, memory_comes_back_from_streams_that_are_destroyed) {
  for (bool const seen : {false, true}) {
    for (auto const how : uses) {
      for (int i = 0; i < 100; ++i) {
        auto const on = make_foreign();
        if (seen) touch(on);
        capture(on, how);
        destroy(on);
      }
      EXPECT_LE(pool.statistics().reserved, 256 * MiB) << static_cast<int>(how) << (seen ? ", seen before" : "");
    }
  }
}

TEST_F(captured_streams, memory_comes_back_from_one_stream_that_only_captures) {
  auto const on = make_foreign();
  for (int i = 0; i < 100; ++i) {
    capture(on, i % 2 ? use::recorded : use::freed);
    simulator::run_until_idle();
  }
  EXPECT_LE(pool.statistics().reserved, 256 * MiB);
  destroy(on);
}

// The pool cannot know whether the stream's work from before the capture is complete.
TEST_F(captured_streams, memory_waits_for_the_next_call_on_a_stream_that_lives) {
  for (bool const seen : {false, true}) {
    for (auto const how : uses) {
      auto const on = make_foreign();
      if (seen) touch(on);
      auto* const block = capture(on, how);
      EXPECT_NE(pool.allocate(b, size), block) << static_cast<int>(how);
      simulator::run_until_idle();
      EXPECT_FALSE(pool.synchronize(std::chrono::milliseconds{0})) << static_cast<int>(how);
      auto* const next = pool.allocate(on, 64);
      simulator::run_until_idle();
      EXPECT_TRUE(pool.synchronize(std::chrono::seconds{1})) << static_cast<int>(how);
      EXPECT_EQ(pool.statistics().free_in_use, 0u);
      pool.deallocate(on, next, 64);
      destroy(on);
    }
  }
}

// Only the work of the block's own stream tells when the block is free, if the capturing stream is destroyed.
TEST_F(captured_streams, free_in_a_capture_waits_for_the_stream_of_the_allocation) {
  gpumem::pool_resource<gpumem::cuda_resource> small{device, {.limit = size + 4 * MiB}};
  auto* const block = small.allocate(a, size);
  simulator::work(a, {simulator::write(block, size)}, std::chrono::seconds{1});
  auto const on = make_foreign();
  begin_capture(on);
  small.deallocate(on, block, size);
  end_capture(on);
  cu().stream_destroy(on.get());
  auto const next = make_foreign(); // with the handle
  small.deallocate(next, small.allocate(next, 64), 64);
  if (auto const again = small.try_allocate(b, size)) {
    simulator::work(b, {simulator::write(*again, size)}); // a finding, unless it is ordered after the work on `a`
    small.deallocate(b, *again, size);
  }
  cu().stream_destroy(next.get());
  simulator::run_until_idle();
}

TEST_F(captured_streams, scope_on_a_stream_of_its_own_leaves_nothing_behind) {
  auto const once = [&] {
    auto const on = make_foreign();
    capture(on, use::recorded_in_a_scope);
    destroy(on);
  };
  for (int i = 0; i < 10; ++i) once();
  auto const events = driver_calls("cuEventCreate"), timelines = gpumem::detail::timeline_registry::instance().size();
  auto const reserved = memory.statistics().reserved;
  for (int i = 0; i < 400; ++i) once(); // more than the tests before have left timelines
  EXPECT_LE(driver_calls("cuEventCreate") - events, 100u) << "those of frees on `a`, and not one for each capture";
  EXPECT_EQ(gpumem::detail::timeline_registry::instance().size(), timelines);
  EXPECT_EQ(memory.statistics().reserved, reserved);
}

TEST_F(captured_streams, capture_on_the_raw_handle_of_an_own_or_adopted_stream_is_refused) {
  auto const foreign = make_foreign();
  auto const adopted = gpumem::stream::adopt(foreign.get());
  gpumem::cuda_resource source{device};
  gpumem::pool_resource hardened{source, {.hardened = {.enabled = true}}};
  for (auto const on : {stream_ref{a}, stream_ref{adopted}}) {
    auto* const block = pool.allocate(on, size);
    begin_capture(on);
    EXPECT_EQ(pool.try_allocate(on, size).error().reason, outcome::capture_unsupported);
    EXPECT_THROW((void)pool.acquire(on, size).wait(), gpumem::acquire_error);
    EXPECT_EQ(hardened.try_allocate(on, KiB).error().reason, outcome::capture_unsupported);
    EXPECT_EQ(source.try_allocate(on, KiB).error().reason, outcome::capture_unsupported);
    end_capture(on);
    pool.deallocate(on, block, size);
  }
}

// Only a free of another stream's block asks whether the stream captures. No event tells when a block of its own stream
// is complete until the capture has ended.
TEST_F(captured_streams, free_in_a_capture_on_a_raw_handle_gives_the_block_to_no_other_stream) {
  auto const foreign = make_foreign();
  auto const adopted = gpumem::stream::adopt(foreign.get());
  for (auto const on : {stream_ref{a}, stream_ref{adopted}}) {
    auto* const own = pool.allocate(on, size);
    auto* const others = pool.allocate(b, size);
    auto const before = pool.statistics().free;
    begin_capture(on);
    auto const asked = driver_calls("cuStreamIsCapturing");
    pool.deallocate(on, own, size);
    EXPECT_EQ(driver_calls("cuStreamIsCapturing"), asked);
    EXPECT_EQ(pool.statistics().free, before + size);
    pool.deallocate(on, others, size);
    EXPECT_EQ(pool.statistics().free, before + size) << "the free is deferred";
    simulator::run_until_idle();
    auto* const next = pool.allocate(b, size);
    EXPECT_TRUE(next != own && next != others);
    pool.deallocate(b, next, size);
    end_capture(on);
    touch(on);
    EXPECT_GE(pool.statistics().free, before + 2 * size - KiB);
  }
}

TEST_F(captured_streams, checked_pool_is_asked_at_each_call) {
  simulator::checked seen{pool};
  seen.deallocate(a, seen.allocate(a, KiB), KiB); // into the thread's cache
  begin_capture(a);
  EXPECT_EQ(seen.try_allocate(a, KiB).error().reason, outcome::capture_unsupported);
  end_capture(a);
}

TEST_F(captured_streams, waits_and_events_end_no_capture) {
  gpumem::event outside{device}, inside{device};
  outside.record(b);
  begin_capture(a);
  EXPECT_THROW(a.synchronize(), gpumem::cuda_error);
  EXPECT_THROW(outside.make_wait(a), gpumem::acquire_error);
  inside.record(a);
  EXPECT_THROW(inside.make_wait(stream_ref{CU_STREAM_LEGACY}), gpumem::acquire_error);
  auto const other = make_foreign();
  begin_capture(other);
  EXPECT_THROW(inside.make_wait(other), gpumem::acquire_error);
  end_capture(other);
  end_capture(a);
  cu().stream_destroy(other.get());
  CUstream blocking = nullptr;
  gpumem::driver_api::check(cu().stream_create(&blocking, CU_STREAM_DEFAULT), "cuStreamCreate");
  begin_capture(stream_ref{blocking});
  EXPECT_THROW(outside.record(stream_ref{CU_STREAM_LEGACY}), gpumem::acquire_error);
  EXPECT_THROW(outside.make_wait(stream_ref{CU_STREAM_LEGACY}), gpumem::acquire_error);
  end_capture(stream_ref{blocking});
  cu().stream_destroy(blocking);
}

} // namespace
