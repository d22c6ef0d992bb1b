// The pool's interface: handles, sizes, options, errors, statistics.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/make_pool.hpp>
#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::outcome;
using gpumem::pool_options;
using gpumem::pool_resource;
using gpumem_test::recording_upstream;
using pool = pool_resource<recording_upstream>;
constexpr std::size_t MiB = std::size_t{1} << 20;

static_assert(sizeof(pool) == 8 && std::is_nothrow_move_constructible_v<pool> && std::is_copy_constructible_v<pool>);
static_assert(gpumem::mr::resource_with<pool, gpumem::mr::device_accessible>);
static_assert(gpumem::mr::resource_with<pool_resource<gpumem::cuda_resource>, gpumem::mr::device_accessible>);
static_assert(!gpumem::mr::has_property<pool, gpumem::mr::host_accessible>);

class pool_interface : public gpumem_test::simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream s{device};
  recording_upstream upstream;
};

TEST_F(pool_interface, upstream_type_is_deduced_and_copies_are_the_same_pool) {
  pool_resource first{upstream};
  static_assert(std::is_same_v<decltype(first), pool>);
  auto second = first;
  EXPECT_EQ(first, second);
  EXPECT_NE(first, pool{upstream});
  EXPECT_EQ(first.upstream(), upstream);
  auto* const p = first.allocate(s, 1000);
  second.deallocate(s, p, 1000);
  auto const moved = std::move(first);
  EXPECT_EQ(moved, second);
}

TEST_F(pool_interface, blocks_of_different_sizes_share_one_chunk) {
  pool_resource r{upstream};
  auto* const p = r.allocate(s, 64 * 1024 + 1);
  auto* const q = r.allocate(s, 64 * 1024 + 300);
  EXPECT_EQ(upstream.state().draws().size(), 1u);
  EXPECT_EQ(upstream.state().draws()[0].bytes, 2 * MiB);
  EXPECT_EQ(static_cast<char*>(q) - static_cast<char*>(p), 72 * 1024);
  auto const f = r.statistics();
  EXPECT_EQ(f.live, 128u * 1024 + 301u);
  EXPECT_EQ(f.allocated, 144u * 1024);
  EXPECT_EQ(f.reserved, 2 * MiB);
  EXPECT_EQ(f.largest_free, 2 * MiB - f.allocated);
  EXPECT_EQ(f.allocations, 2u);
  EXPECT_EQ(f.upstream_allocations, 1u);
  r.deallocate(s, p, 64 * 1024 + 1);
  r.deallocate(s, q);
  EXPECT_EQ(r.statistics().live, 0u);
  EXPECT_EQ(r.statistics().allocated, 0u);
  EXPECT_EQ(r.trim(2 * MiB), 0u); // flushes the thread caches
  EXPECT_EQ(r.statistics().largest_free, 2 * MiB);
  EXPECT_EQ(r.statistics().peak_live, f.live);
  EXPECT_EQ(r.statistics().frees, 2u);
}

TEST_F(pool_interface, zero_bytes_give_a_null_pointer) {
  pool_resource r{upstream};
  EXPECT_EQ(r.allocate(s, 0), nullptr);
  r.deallocate(s, nullptr, 0);
  r.deallocate(s, nullptr);
  EXPECT_TRUE(upstream.state().draws().empty());
}

TEST_F(pool_interface, every_power_of_two_is_an_alignment) {
  pool_resource r{upstream};
  for (std::size_t alignment = 1; alignment <= 4 * MiB; alignment *= 2) {
    auto* const p = r.allocate(s, 1000, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % alignment, 0u) << alignment;
    auto* const pad = r.allocate(s, 300);
    r.deallocate(s, p, 1000, 16);
    r.deallocate(s, pad, 300);
  }
  EXPECT_THROW((void)r.allocate(s, 1000, 48), std::invalid_argument);
  EXPECT_EQ(r.statistics().allocated, 0u);
}

TEST_F(pool_interface, impossible_requests_are_refused_at_once) {
  pool_resource r{upstream, {.limit = 4 * MiB}};
  EXPECT_EQ(r.try_allocate(s, 4 * MiB + 1).error().reason, outcome::too_large);
  EXPECT_EQ(r.try_allocate(s, SIZE_MAX).error().reason, outcome::too_large);
  EXPECT_EQ(r.try_allocate(s, SIZE_MAX - 300, 512).error().reason, outcome::too_large);
  EXPECT_TRUE(upstream.state().draws().empty());
  EXPECT_EQ(pool_resource{upstream}.try_allocate(s, PTRDIFF_MAX - 1024).error().reason, outcome::exhausted);
}

TEST_F(pool_interface, contradicting_options_are_refused) {
  EXPECT_THROW((pool{upstream, {.initial_size = 3 * MiB, .limit = 2 * MiB}}), std::invalid_argument);
  EXPECT_THROW((pool{upstream, {.limit = 100}}), std::invalid_argument);
  EXPECT_THROW((pool{upstream, {.initial_size = SIZE_MAX}}), std::invalid_argument);
  EXPECT_THROW((pool{upstream, {.cross_stream = static_cast<gpumem::reuse_policy>(9)}}), std::invalid_argument);
  upstream.state().capacity = 1 * MiB;
  EXPECT_THROW((pool{upstream, {.initial_size = 2 * MiB}}), gpumem::out_of_memory);
  EXPECT_TRUE(upstream.state().draws().empty());
}

TEST_F(pool_interface, initial_size_serves_every_stream_and_the_host) {
  pool_resource r{upstream, {.initial_size = 1 * MiB, .name = "first"}};
  EXPECT_EQ(r.statistics().reserved, 1 * MiB);
  EXPECT_TRUE(upstream.state().draws().at(0).by_host);
  gpumem::stream t{device};
  auto* const p = r.allocate(s, 1000);
  auto* const q = r.allocate(t, 1000);
  auto* const h = r.allocate_sync(1000);
  EXPECT_EQ(upstream.state().draws().size(), 1u);
  EXPECT_EQ(r.options().name, "first");
  r.deallocate(s, p, 1000);
  r.deallocate(t, q, 1000);
  r.deallocate_sync(h, 1000);
}

TEST_F(pool_interface, limit_holds_and_can_be_used_to_the_last_byte) {
  pool_resource r{upstream, {.limit = 3 * MiB}};
  auto* const p = r.allocate(s, 2 * MiB);
  auto* const q = r.allocate(s, 1 * MiB);
  EXPECT_EQ(r.statistics().reserved, 3 * MiB);
  auto const refused = r.try_allocate(s, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, outcome::exhausted);
  EXPECT_EQ(r.statistics().failures, 1u);
  try {
    (void)r.allocate(s, 4096);
    ADD_FAILURE() << "nothing was thrown";
  } catch (gpumem::out_of_memory const& e) {
    EXPECT_EQ(e.info().requested, 4096u);
    EXPECT_TRUE(std::string{e.what()}.starts_with("gpumem: out of memory (exhausted) in 'pool': requested 4.0 KiB, "
                                                  "live 3.0 MiB, reserved 3.0 MiB"))
        << e.what();
    EXPECT_EQ(e.info().live, 3 * MiB);
    EXPECT_EQ(e.info().reserved, 3 * MiB);
    EXPECT_EQ(e.info().limit, 3 * MiB);
    EXPECT_EQ(e.info().stream, s.key().identity().id());
  }
  r.deallocate(s, p, 2 * MiB);
  auto* const again = r.allocate(s, 2 * MiB);
  EXPECT_EQ(again, p);
  r.deallocate(s, again, 2 * MiB);
  r.deallocate(s, q, 1 * MiB);
}

TEST_F(pool_interface, failure_reports_free_bytes_and_their_streams) {
  gpumem::stream t{device};
  pool_resource r{upstream, {.initial_size = 4 * MiB, .limit = 4 * MiB}};
  void* all[4];
  for (auto*& each : all) each = r.allocate(s, 1 * MiB);
  auto const nothing = r.statistics();
  EXPECT_EQ(nothing.free + nothing.free_ranges + nothing.free_in_use + nothing.in_use_streams, 0u);
  gpumem::event happened{device};
  happened.record(s);
  t.wait(happened);
  r.deallocate(s, all[0], 1 * MiB);
  r.deallocate(t, all[2], 1 * MiB);
  try {
    (void)r.allocate(s, 2 * MiB);
    ADD_FAILURE() << "nothing was thrown";
  } catch (gpumem::out_of_memory const& e) {
    EXPECT_EQ(e.info().free, 2 * MiB);
    EXPECT_EQ(e.info().free_ranges, 2u);
    EXPECT_EQ(e.info().largest_free, 1 * MiB);
    EXPECT_EQ(e.info().free_in_use, 2 * MiB);
    EXPECT_EQ(e.info().in_use_streams, 2u);
  }
  gpumem::simulator::run_until_idle();
  r.trim(1);
  EXPECT_EQ(r.statistics().free_in_use, 0u);
  for (auto const i : {1, 3}) r.deallocate(s, all[i], 1 * MiB);
}

TEST_F(pool_interface, reserved_memory_serves_requests_without_growth) {
  pool_resource r{upstream, {.limit = 8 * MiB + 100}};
  EXPECT_EQ(r.reserve(0), 0u);
  EXPECT_EQ(r.reserve(3 * MiB - 1), 3 * MiB);
  EXPECT_EQ(r.reserve(3 * MiB), 0u);
  EXPECT_EQ(r.reserve(5 * MiB), 2 * MiB);
  EXPECT_TRUE(upstream.state().draws().at(1).by_host);
  auto* const p = r.allocate(s, 3 * MiB);
  auto* const q = r.allocate_sync(2 * MiB);
  EXPECT_EQ(r.statistics().upstream_allocations, 2u);
  try {
    r.reserve(8 * MiB + 101);
    ADD_FAILURE() << "more than the limit";
  } catch (gpumem::out_of_memory const& e) {
    EXPECT_EQ(e.reason(), gpumem::outcome::too_large);
    EXPECT_EQ(e.info().live, 5 * MiB);
    EXPECT_EQ(e.info().reserved, 5 * MiB);
  }
  EXPECT_EQ(r.reserve(8 * MiB + 100), 3 * MiB) << "whole granules, within the limit";
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  r.deallocate(s, p, 3 * MiB);
  r.deallocate_sync(q, 2 * MiB);
}

TEST_F(pool_interface, refused_reserve_has_the_figures_of_a_hardened_pool) {
  pool_resource r{upstream, {.limit = 8 * MiB, .hardened = {.enabled = true}}};
  r.deallocate(s, r.allocate(s, 1 * MiB), 1 * MiB);
  auto* const p = r.allocate(s, 1 * MiB);
  try {
    r.reserve(8 * MiB + 1);
    ADD_FAILURE() << "more than the limit";
  } catch (gpumem::out_of_memory const& e) {
    EXPECT_EQ(e.info().live, 1 * MiB);
    EXPECT_EQ(e.info().quarantined, r.statistics().quarantined);
    EXPECT_GT(e.info().quarantined, 0u);
  }
  r.deallocate(s, p, 1 * MiB);
}

TEST_F(pool_interface, reserve_fails_where_upstream_is_exhausted) {
  pool_resource r{upstream};
  upstream.state().capacity = 2 * MiB;
  EXPECT_THROW(r.reserve(SIZE_MAX), gpumem::out_of_memory);
  EXPECT_THROW(r.reserve(3 * MiB), gpumem::out_of_memory);
  EXPECT_EQ(r.statistics().reserved, 0u);
  EXPECT_EQ(r.reserve(2 * MiB), 2 * MiB);
}

TEST_F(pool_interface, limit_can_change_while_the_pool_is_used) {
  pool_resource r{upstream, {.limit = 2 * MiB}};
  auto* const p = r.allocate(s, 2 * MiB);
  EXPECT_EQ(r.try_allocate(s, 1 * MiB).error().reason, outcome::exhausted);
  r.set_limit(3 * MiB);
  EXPECT_EQ(r.statistics().limit, 3 * MiB);
  auto* const q = r.allocate(s, 1 * MiB);
  r.set_limit(1 * MiB);
  EXPECT_EQ(r.statistics().reserved, 3 * MiB) << "memory in use stays";
  EXPECT_EQ(r.try_allocate(s, 2 * MiB).error().reason, outcome::too_large);
  EXPECT_EQ(r.try_allocate(s, 1 * MiB).error().reason, outcome::exhausted);
  EXPECT_THROW(r.reserve(2 * MiB), gpumem::out_of_memory);
  r.deallocate(s, p, 2 * MiB);
  {
    gpumem_test::running_device const running;
    EXPECT_TRUE(r.synchronize(std::chrono::seconds{1}));
  }
  EXPECT_EQ(r.trim(), 2 * MiB);
  r.set_limit(0);
  auto* const large = r.allocate(s, 16 * MiB);
  r.deallocate(s, large, 16 * MiB);
  r.deallocate(s, q, 1 * MiB);
  EXPECT_THROW(r.set_limit(100), std::invalid_argument);
  EXPECT_THROW(r.set_limit(SIZE_MAX), std::invalid_argument);
}

TEST_F(pool_interface, growth_falls_back_to_the_exact_size) {
  upstream.state().capacity = 1 * MiB;
  pool_resource r{upstream};
  auto* const p = r.allocate(s, 1 * MiB);
  EXPECT_EQ(r.statistics().reserved, 1 * MiB);
  r.deallocate(s, p, 1 * MiB);
}

TEST_F(pool_interface, find_describes_live_and_free_memory) {
  pool_resource r{upstream};
  auto* const p = static_cast<char*>(r.allocate(s, 1000));
  auto const inside = r.find(p + 1023);
  ASSERT_TRUE(inside);
  EXPECT_EQ(inside->base, p);
  EXPECT_EQ(inside->bytes, 1000u);
  EXPECT_EQ(inside->allocated, 1024u);
  EXPECT_EQ(inside->stream, s.key().identity().id());
  EXPECT_TRUE(inside->live);
  EXPECT_FALSE(r.find(p + 1024)->live);
  EXPECT_EQ(r.find(p + 1024)->allocated, 1024u) << "another block of the same size";
  EXPECT_EQ(r.find(p + MiB)->base, p + 8 * 1024);
  EXPECT_EQ(r.find(p + MiB)->allocated, 2 * MiB - 8 * 1024);
  EXPECT_FALSE(r.find(&r));
  r.deallocate(s, p, 1000);
  EXPECT_FALSE(r.find(p)->live);
}

TEST_F(pool_interface, trim_returns_idle_and_complete_chunks) {
  pool_resource r{upstream};
  auto* const p = r.allocate(s, 4 * MiB);
  auto* const q = r.allocate(s, 8 * MiB);
  r.deallocate(s, p, 4 * MiB);
  r.deallocate(s, q, 8 * MiB);
  gpumem::simulator::work(s, {});
  EXPECT_EQ(r.trim(), 0u) << "the host has not seen the stream complete";
  gpumem::simulator::run_until_idle();
  EXPECT_EQ(r.trim(5 * MiB), 4 * MiB);
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_EQ(gpumem::trim(r), 8 * MiB);
  EXPECT_EQ(r.statistics().upstream_frees, 2u);
  EXPECT_EQ(r.statistics().peak_reserved, 12 * MiB);
  EXPECT_TRUE(upstream.state().returns().at(0).by_host && upstream.state().returns().at(1).by_host);
}

// gpumem records no event on a foreign stream, except in a call that gets this stream.
TEST_F(pool_interface, trim_after_synchronize_returns_memory_of_foreign_streams) {
  CUstream foreign = nullptr;
  ASSERT_EQ(gpumem::driver_api::driver().stream_create(&foreign, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  gpumem::stream_ref const other{foreign};
  pool_resource r{upstream};
  EXPECT_TRUE(r.synchronize(std::chrono::seconds{1})) << "nothing to wait for";
  for (bool const by_address : {false, true}) {
    auto* const p = r.allocate(other, 4 * MiB);
    gpumem::simulator::work(other, {gpumem::simulator::write(p, 4 * MiB)});
    by_address ? static_cast<void>(r.try_deallocate(p)) : r.deallocate(other, p, 4 * MiB);
    EXPECT_FALSE(r.synchronize(std::chrono::nanoseconds{0}));
    gpumem::simulator::run_until_idle();
    EXPECT_TRUE(r.synchronize(std::chrono::seconds{10}));
    EXPECT_EQ(r.trim(), 4 * MiB);
  }
  EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(foreign), CUDA_SUCCESS);
}

TEST_F(pool_interface, blocks_can_be_freed_by_their_address_alone) {
  for (auto const& options :
       {pool_options{}, pool_options{.hardened = {.enabled = true}}, pool_options{.pass_through = true}}) {
    pool_resource r{upstream, options};
    auto* const p = r.allocate(s, 1000);
    auto* const synced = r.allocate_sync(3000);
    EXPECT_EQ(r.bytes_of(p), 1000u);
    EXPECT_EQ(r.bytes_of(static_cast<char*>(p) + 256), std::nullopt);
    EXPECT_EQ(r.bytes_of(nullptr), std::nullopt);
    EXPECT_EQ(r.try_deallocate(static_cast<char*>(p) + 256), std::nullopt);
    EXPECT_EQ(r.try_deallocate(nullptr), std::nullopt);
    EXPECT_EQ(r.try_deallocate(p), 1000u);
    EXPECT_EQ(r.try_deallocate(p), std::nullopt);
    EXPECT_EQ(r.bytes_of(p), std::nullopt);
    EXPECT_EQ(r.try_deallocate(synced), 3000u);
    EXPECT_EQ(r.statistics().live, 0u);
    EXPECT_EQ(r.statistics().frees, 2u);
  }
  auto moved = pool_resource{upstream};
  auto const taken = std::move(moved);
  EXPECT_EQ(moved.try_deallocate(&moved), std::nullopt); // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(moved.bytes_of(&moved), std::nullopt);
}

// Memory freed by its address alone is in the order of the stream for which it was allocated.
TEST_F(pool_interface, streams_reuse_blocks_that_were_freed_by_their_address) {
  pool_resource r{upstream};
  auto* const p = r.allocate(s, 3 * MiB);
  gpumem::simulator::work(s, {gpumem::simulator::write(p, 3 * MiB)}, std::chrono::milliseconds{1});
  r.try_deallocate(p);
  EXPECT_EQ(r.allocate(s, 3 * MiB), p);
  r.try_deallocate(p);
  EXPECT_EQ(r.statistics().reuse_same_stream, 1u);
  gpumem::stream other{device};
  auto* const q = r.allocate(other, 3 * MiB);
  EXPECT_NE(q, p) << "the work on the first stream is not complete";
  r.try_deallocate(q);
}

TEST_F(pool_interface, peaks_can_be_reset) {
  pool_resource r{upstream};
  auto* const p = r.allocate(s, 5 * MiB);
  auto* const q = r.allocate(s, 1000);
  r.deallocate(s, p, 5 * MiB);
  gpumem::simulator::run_until_idle();
  r.trim();
  auto seen = r.statistics();
  EXPECT_EQ(seen.peak_live, 5 * MiB + 1000);
  EXPECT_EQ(seen.reserved_in_all, seen.peak_reserved);
  r.reset_peaks();
  seen = r.statistics();
  EXPECT_EQ(seen.peak_live, 1000u);
  EXPECT_EQ(seen.peak_reserved, seen.reserved);
  auto const in_all = seen.reserved_in_all;
  auto const reserved = seen.reserved;
  r.deallocate(s, r.allocate(s, 9 * MiB), 9 * MiB);
  seen = r.statistics();
  EXPECT_EQ(seen.peak_live, 9 * MiB + 1000);
  EXPECT_EQ(seen.reserved_in_all - in_all, seen.reserved - reserved);
  r.deallocate(s, q, 1000);
}

TEST_F(pool_interface, code_without_modules_can_use_the_pool) {
  auto any = gpumem::make_pool(0, {.initial_size = 2 * MiB, .limit = 4 * MiB});
  EXPECT_EQ(gpumem::statistics_of(any)->reserved, 2 * MiB);
  auto block = gpumem::acquire(any, s, 1000).wait();
  EXPECT_EQ(gpumem::statistics_of(any)->live, 1000u);
  EXPECT_THROW((void)gpumem::make_pool(7), std::invalid_argument);
}

} // namespace
