// Loans of a pool's pages: borrowers map them at addresses of their own.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using gpumem::outcome;
using gpumem::detail::page_lender;
using gpumem_test::MiB;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
namespace simulator = gpumem::simulator;
constexpr std::size_t GiB = 1024 * MiB;

class page_loans : public gpumem_test::waiting_fixture {
protected:
  static bool is_consistent(pool& of) {
    return static_cast<gpumem::detail::pool_state*>(of.services().state)->engine().is_consistent();
  }
  static outcome reason_of(gpumem::expected<void*, gpumem::failure> const& got) {
    return got ? outcome::granted : got.error().reason;
  }
  static std::byte* at(page_lender const& lender, std::size_t offset) {
    return static_cast<std::byte*>(lender.base()) + offset;
  }
};

TEST_F(page_loans, loan_lies_in_the_addresses_of_its_borrower) {
  pool r{device};
  page_lender lender{r, GiB};
  auto* const first = lender.allocate(a, 4 * MiB);
  auto* const second = lender.allocate(b, 2 * MiB);
  EXPECT_EQ(first, at(lender, 0));
  EXPECT_EQ(second, at(lender, 4 * MiB));
  EXPECT_EQ(lender.try_allocate_at(a, 100 * MiB, 2 * MiB).value(), at(lender, 100 * MiB));
  EXPECT_EQ(lender.try_allocate_at(a, 50 * MiB, 2 * MiB).value(), at(lender, 50 * MiB));
  EXPECT_TRUE(is_consistent(r));
  for (auto const [offset, bytes] : {std::pair{0, 4}, {4, 2}, {100, 2}, {50, 2}})
    lender.deallocate(a, at(lender, offset * MiB), bytes * MiB);
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(page_loans, loans_count_in_limit_and_statistics) {
  pool r{device, {.limit = 64 * MiB}};
  page_lender lender{r, GiB};
  auto* const lent = lender.allocate(a, 32 * MiB);
  auto const seen = r.statistics();
  EXPECT_EQ(seen.lent, 32 * MiB);
  EXPECT_EQ(seen.allocated, 32 * MiB);
  EXPECT_EQ(seen.live, 32 * MiB);
  EXPECT_EQ(seen.reserved, 32 * MiB);
  EXPECT_EQ(seen.shards, 1u);
  EXPECT_EQ(reason_of(r.try_allocate(a, 40 * MiB)), outcome::exhausted);
  EXPECT_EQ(reason_of(lender.try_allocate(a, 34 * MiB)), outcome::exhausted);
  lender.deallocate(a, lent, 32 * MiB);
  EXPECT_EQ(r.statistics().lent, 0u);
  EXPECT_EQ(r.statistics().largest_free, 0u);
  a.synchronize();
  auto* const moved = static_cast<std::byte*>(r.allocate(a, 40 * MiB));
  EXPECT_FALSE(moved >= at(lender, 0) && moved < at(lender, GiB)) << "at the borrower's addresses";
  EXPECT_LE(r.statistics().peak_reserved, 64 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, moved, 40 * MiB);
}

TEST_F(page_loans, loan_may_begin_anywhere) {
  pool r{device};
  page_lender lender{r, GiB};
  for (auto const offset : {100, 50, 2, 0, 102}) {
    auto const before = r.statistics().reserved;
    ASSERT_EQ(lender.try_allocate_at(a, offset * MiB, 2 * MiB).value_or(nullptr), at(lender, offset * MiB));
    EXPECT_EQ(r.statistics().reserved, before + 2 * MiB);
    EXPECT_TRUE(is_consistent(r));
  }
  for (auto const offset : {0, 50, 102, 100, 2}) {
    lender.deallocate(a, at(lender, offset * MiB), 2 * MiB);
    a.synchronize();
    r.trim();
    EXPECT_TRUE(is_consistent(r));
  }
  EXPECT_EQ(r.statistics().reserved, 0u);
}

// Other blocks of spare shards are cached.
TEST_F(page_loans, no_thread_caches_a_loan) {
  pool r{device, {.shard_per_thread = true}};
  page_lender lender{r, GiB};
  auto* const own = r.allocate(a, 1000 * MiB);
  for (int i = 0; i < 2; ++i) std::thread{[&] { r.deallocate(b, r.allocate(b, MiB), MiB); }}.join();
  auto* const lent = lender.allocate(a, 2 * MiB);
  for (int i = 0; i < 1000; ++i) r.deallocate(a, r.allocate(a, 2 * MiB), 2 * MiB);
  auto const before = r.statistics().cached;
  EXPECT_GE(before, 2 * MiB);
  lender.deallocate(a, lent, 2 * MiB);
  EXPECT_EQ(r.statistics().cached, before);
  r.deallocate(a, own, 1000 * MiB);
  r.trim();
}

TEST_F(page_loans, no_thread_gets_the_shard_of_the_loans) {
  pool r{device, {.shard_per_thread = true}};
  page_lender lender{r, GiB};
  auto* const lent = lender.allocate(a, 64 * MiB);
  lender.deallocate(a, lent, 64 * MiB);
  a.synchronize();
  std::thread{[&] {
    auto* const own = static_cast<std::byte*>(r.allocate(b, 4 * MiB));
    EXPECT_FALSE(own >= at(lender, 0) && own < at(lender, GiB)) << "at the borrower's addresses";
    r.deallocate(b, own, 4 * MiB);
  }}.join();
}

TEST_F(page_loans, pool_gives_idle_memory_to_borrowers) {
  pool r{device, {.limit = 64 * MiB}};
  page_lender lender{r, GiB};
  r.deallocate(a, r.allocate(a, 60 * MiB), 60 * MiB);
  a.synchronize();
  auto* const lent = lender.allocate(a, 62 * MiB);
  EXPECT_LE(r.statistics().peak_reserved, 64 * MiB);
  lender.deallocate(a, lent, 62 * MiB);
}

TEST_F(page_loans, borrowers_wait_in_the_line_of_the_pool) {
  pool r{device, {.limit = 100 * MiB, .max_overtakes = 0}};
  page_lender lender{r, GiB};
  auto block = r.acquire(a, 60 * MiB).wait();
  request first{*this, lender, b, 60 * MiB}, second{*this, r, b, 50 * MiB};
  EXPECT_FALSE(executor.run_one());
  EXPECT_EQ(reason_of(r.try_allocate(b, 4 * MiB)), outcome::exhausted) << "overtook the borrower";
  block.reset();
  run_until([&] {
    simulator::run_until_idle();
    return first.ended().has_value();
  });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(first.block().data(), lender.base());
  EXPECT_FALSE(second.ended());
  first.block().reset();
  run_until([&] {
    simulator::run_until_idle();
    return second.ended().has_value();
  });
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_LE(r.statistics().peak_reserved, 100 * MiB);
}

TEST_F(page_loans, borrower_stops_and_meets_its_deadline) {
  pool r{device, {.limit = 100 * MiB}};
  page_lender lender{r, GiB};
  auto block = r.acquire(a, 60 * MiB).wait();
  std::stop_source source;
  request stopped{*this, lender, b, 60 * MiB, source.get_token()};
  source.request_stop();
  run_all();
  EXPECT_EQ(stopped.ended(), outcome::stopped);
  auto const late = std::chrono::steady_clock::now() + std::chrono::milliseconds{2};
  EXPECT_EQ(lender.acquire(b, 60 * MiB).wait_until(late).error().reason, outcome::deadline);
  request high{*this, lender, b, 60 * MiB, {.priority = 1}}, destroyed{*this, lender, b, 60 * MiB};
  destroyed.destroy();
  block.reset();
  run_until([&] {
    simulator::run_until_idle();
    return high.ended().has_value();
  });
  EXPECT_EQ(high.ended(), outcome::granted);
}

// The work on them still runs, so neither the pool's own requests nor a trim may take the pages.
TEST_F(page_loans, freed_pages_stay_until_their_uses_are_complete) {
  pool r{device, {.limit = 64 * MiB}};
  page_lender lender{r, GiB};
  auto* const lent = lender.allocate(a, 60 * MiB);
  simulator::work(a, {simulator::write(lent, 60 * MiB)});
  lender.deallocate(a, lent, 60 * MiB);
  EXPECT_EQ(reason_of(r.try_allocate(b, 8 * MiB)), outcome::exhausted);
  EXPECT_EQ(r.trim(), 0u);
  EXPECT_EQ(r.statistics().free_in_use, 60 * MiB);
  a.synchronize();
  auto* const other = r.allocate(b, 8 * MiB);
  r.deallocate(b, other, 8 * MiB);
  b.synchronize();
  r.trim();
  EXPECT_EQ(r.statistics().reserved, 0u);
}

TEST_F(page_loans, borrower_gets_its_freed_pages_again) {
  pool r{device};
  page_lender lender{r, GiB};
  auto* const lent = lender.allocate(a, 8 * MiB);
  simulator::work(a, {simulator::write(lent, 8 * MiB)});
  lender.deallocate(a, lent, 8 * MiB);
  auto* const again = lender.try_allocate_at(a, 0, 4 * MiB).value();
  EXPECT_EQ(again, lent);
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_EQ(reason_of(lender.try_allocate_at(a, 2 * MiB, 4 * MiB)), outcome::invalid_argument) << "partly lent";
  lender.deallocate(a, again, 4 * MiB);
  a.synchronize();
  auto* const third = lender.try_allocate_at(b, 2 * MiB, 6 * MiB).value();
  EXPECT_EQ(third, at(lender, 2 * MiB));
  lender.deallocate(b, third, 6 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

// The other stream waits on the device for the work that still runs there.
TEST_F(page_loans, another_stream_waits_for_the_work_on_freed_pages) {
  pool r{device};
  page_lender lender{r, GiB};
  for (int i = 0; i < 2; ++i) {
    auto* const lent = lender.try_allocate_at(a, 0, 8 * MiB).value();
    simulator::work(a, {simulator::write(lent, 8 * MiB)});
    lender.deallocate(a, lent, 8 * MiB);
    auto* const again = lender.try_allocate_at(b, 4 * MiB, 8 * MiB).value();
    EXPECT_EQ(again, at(lender, 4 * MiB));
    simulator::work(b, {simulator::write(again, 8 * MiB)});
    EXPECT_EQ(r.statistics().reserved, 12 * MiB);
    lender.deallocate(b, again, 8 * MiB);
    EXPECT_TRUE(is_consistent(r));
  }
  EXPECT_EQ(reason_of(page_lender{r, GiB}.try_allocate(a, MiB)), outcome::invalid_argument);
}

TEST_F(page_loans, only_that_stream_gets_pages_in_use_where_none_may_wait) {
  pool r{device, {.cross_stream = gpumem::reuse_policy::completed}};
  page_lender lender{r, GiB};
  auto* const lent = lender.try_allocate_at(a, 0, 8 * MiB).value();
  simulator::work(a, {simulator::write(lent, 8 * MiB)});
  lender.deallocate(a, lent, 8 * MiB);
  EXPECT_EQ(reason_of(lender.try_allocate_at(b, 0, 8 * MiB)), outcome::exhausted) << "work still runs there";
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  a.synchronize();
  auto* const again = lender.try_allocate_at(b, 0, 8 * MiB).value();
  lender.deallocate(b, again, 8 * MiB);
}

// Some pages are mapped and free there, others are not: the loan maps only these.
TEST_F(page_loans, loan_takes_mapped_pages_and_fills_the_holes_between) {
  pool r{device, {.limit = 18 * MiB}};
  page_lender lender{r, GiB};
  for (std::size_t const offset : {4, 12, 16}) {
    auto* const lent = lender.try_allocate_at(offset == 12 ? b : a, offset * MiB, 2 * MiB).value();
    simulator::work(offset == 12 ? b : a, {simulator::write(lent, 2 * MiB)});
    lender.deallocate(offset == 12 ? b : a, lent, 2 * MiB);
  }
  auto const before = simulator::report().driver_calls["cuMemCreate"];
  auto* const all = lender.try_allocate_at(a, 2 * MiB, 18 * MiB).value();
  simulator::work(a, {simulator::write(all, 18 * MiB)});
  EXPECT_EQ(simulator::report().driver_calls["cuMemCreate"] - before, 6u);
  EXPECT_EQ(r.statistics().reserved, 18 * MiB);
  EXPECT_EQ(r.statistics().lent, 18 * MiB);
  EXPECT_TRUE(is_consistent(r));
  lender.deallocate(a, all, 18 * MiB);
}

TEST_F(page_loans, refused_hole_leaves_no_page_in_the_others) {
  pool r{device};
  page_lender lender{r, GiB};
  lender.deallocate(a, lender.try_allocate_at(a, 4 * MiB, 2 * MiB).value(), 2 * MiB);
  a.synchronize();
  for (unsigned nth : {2u, 4u, 6u}) simulator::fail_call("cuMemCreate", nth, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_FALSE(lender.try_allocate_at(a, 2 * MiB, 6 * MiB));
  EXPECT_LE(r.statistics().reserved, 2 * MiB);
  EXPECT_EQ(r.statistics().lent, 0u);
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(page_loans, parts_of_a_loan_are_freed_alone) {
  pool r{device};
  page_lender lender{r, GiB};
  auto* const lent = lender.try_allocate_at(a, 0, 12 * MiB).value();
  simulator::work(a, {simulator::write(lent, 12 * MiB)});
  lender.state().divide(lent, 8 * MiB);
  lender.state().divide(lent, 2 * MiB);
  EXPECT_EQ(r.statistics().lent, 12 * MiB);
  ASSERT_TRUE(is_consistent(r)); // a free of a lost part would end the process
  lender.deallocate(a, at(lender, 2 * MiB), 6 * MiB);
  EXPECT_EQ(r.statistics().lent, 6 * MiB);
  EXPECT_EQ(r.trim(), 0u);
  a.synchronize();
  EXPECT_EQ(r.trim(), 6 * MiB);
  simulator::work(a, {simulator::read(lent, 2 * MiB), simulator::read(at(lender, 8 * MiB), 4 * MiB)});
  EXPECT_EQ(lender.try_allocate_at(a, 2 * MiB, 6 * MiB).value(), at(lender, 2 * MiB));
  for (auto const [offset, bytes] : {std::pair{0, 2}, {2, 6}, {8, 4}})
    lender.deallocate(a, at(lender, offset * MiB), bytes * MiB);
  EXPECT_EQ(r.statistics().allocations, r.statistics().frees);
  EXPECT_TRUE(is_consistent(r));
}

// Without a limit the pool learns from the driver that the device is full.
TEST_F(page_loans, borrowers_of_a_full_device_get_each_others_pages) {
  simulator::reset({.capacity = 64 * MiB});
  {
    pool r{device, {.effort = 0}};
    page_lender one{r, GiB}, other{r, GiB};
    for (int i = 0; i < 6; ++i) {
      auto& lender = i % 2 ? one : other;
      auto* const lent = lender.try_allocate_at(a, 0, 48 * MiB).value_or(nullptr);
      EXPECT_EQ(lent, lender.base()) << i;
      if (lent) lender.deallocate(a, lent, 48 * MiB);
      a.synchronize();
    }
  }
  simulator::reset();
}

// Each loan finds addresses, although the freed pages before it are still mapped there.
TEST_F(page_loans, loans_in_turn_use_the_same_addresses) {
  pool r{device};
  page_lender lender{r, 8 * MiB};
  for (int i = 0; i < 20; ++i) {
    auto* const lent = lender.allocate(i % 2 ? a : b, 4 * MiB);
    lender.deallocate(i % 2 ? a : b, lent, 4 * MiB);
    a.synchronize();
    b.synchronize();
  }
  auto* const all = lender.allocate(a, 8 * MiB);
  EXPECT_EQ(reason_of(lender.try_allocate(a, 2 * MiB)), outcome::exhausted) << "a free gives addresses back";
  lender.deallocate(a, all, 8 * MiB);
}

// Two streams have freed the pages, or the pool has taken some.
TEST_F(page_loans, borrower_gets_pages_again_that_were_freed_in_parts) {
  pool r{device, {.limit = 8 * MiB}};
  page_lender lender{r, GiB};
  for (int i = 0; i < 3; ++i) {
    auto* const first = lender.try_allocate_at(a, 0, 4 * MiB).value();
    auto* const second = lender.try_allocate_at(b, 4 * MiB, 4 * MiB).value();
    lender.deallocate(a, first, 4 * MiB);
    lender.deallocate(b, second, 4 * MiB);
    a.synchronize();
    b.synchronize();
    if (i > 0) r.deallocate(a, r.allocate(a, 2 * MiB), 2 * MiB);
    a.synchronize();
    b.synchronize();
    auto* const both = lender.try_allocate_at(a, 0, 8 * MiB).value_or(nullptr);
    ASSERT_EQ(both, lender.base()) << i;
    lender.deallocate(a, both, 8 * MiB);
    a.synchronize();
    b.synchronize();
  }
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(page_loans, options_of_blocks_do_not_change_loans) {
  pool r{device, {.limit = 8 * MiB, .smallest_block = 4 * MiB, .largest_block = 4 * MiB}};
  page_lender lender{r, GiB};
  auto const loans = gpumem::sync_wait(lender.acquire_all({{a, 2 * MiB}, {b, 4 * MiB}}));
  EXPECT_EQ(r.statistics().lent, 6 * MiB);
  auto* const third = lender.allocate(a, 2 * MiB);
  EXPECT_EQ(third, at(lender, 6 * MiB));
  lender.deallocate(a, third, 2 * MiB);
}

TEST_F(page_loans, pages_larger_than_the_pools_own_go_back_to_the_device) {
  pool r{device, {.limit = 640 * MiB}};
  page_lender lender{r, 2 * GiB, 512 * MiB};
  auto const before = simulator::report().mappings;
  auto* const lent = lender.allocate(a, 514 * MiB);
  EXPECT_EQ(simulator::report().mappings - before, 2u) << "512 and 2 MiB";
  lender.deallocate(a, lent, 514 * MiB);
  a.synchronize();
  auto* const own = r.allocate(a, 200 * MiB);
  EXPECT_GT(simulator::report().mappings - before, 6u) << "pages of 32 MiB at most";
  EXPECT_LE(r.statistics().peak_reserved, 640 * MiB);
  r.deallocate(a, own, 200 * MiB);
}

TEST_F(page_loans, addresses_go_back_with_the_last_page) {
  pool r{device};
  r.deallocate(a, r.allocate(a, MiB), MiB);
  auto const before = simulator::report().bytes_reserved;
  {
    page_lender lender{r, 4 * GiB};
    auto const copy = lender;
    auto* const lent = lender.allocate(a, 8 * MiB);
    EXPECT_EQ(simulator::report().bytes_reserved, before + 4 * GiB);
    lender.deallocate(a, lent, 8 * MiB);
  }
  EXPECT_EQ(simulator::report().bytes_reserved, before + 4 * GiB) << "the pages are still mapped";
  a.synchronize();
  r.trim();
  EXPECT_EQ(simulator::report().bytes_reserved, before);
  page_lender{r, GiB};
  EXPECT_EQ(simulator::report().bytes_reserved, before);
}

// A loan keeps its addresses, and the pool too.
TEST_F(page_loans, loan_outlives_lender_and_pool) {
  auto const before = device_bytes();
  gpumem::allocation lent;
  {
    pool r{device};
    lent = page_lender{r, GiB}.acquire(a, 4 * MiB).wait();
  }
  EXPECT_EQ(device_bytes() - before, 4 * MiB);
  lent.reset();
  EXPECT_TRUE(wait_for_device_bytes(before));
}

TEST_F(page_loans, wrong_requests_are_refused) {
  pool r{device, {.limit = GiB}};
  page_lender lender{r, 64 * MiB};
  EXPECT_EQ(reason_of(lender.try_allocate(a, 3 * MiB)), outcome::invalid_argument) << "no whole pages";
  EXPECT_EQ(reason_of(lender.try_allocate(a, 2 * MiB, 4 * MiB)), outcome::invalid_argument) << "alignment";
  EXPECT_EQ(reason_of(lender.try_allocate_at(a, MiB, 2 * MiB)), outcome::invalid_argument) << "not at a page";
  EXPECT_EQ(reason_of(lender.try_allocate(a, 66 * MiB)), outcome::too_large) << "more than the addresses";
  EXPECT_EQ(reason_of(lender.try_allocate(a, 2 * GiB)), outcome::too_large) << "more than the limit";
  EXPECT_EQ(lender.acquire(a, 66 * MiB).try_now().error().reason, outcome::too_large);
  auto* const lent = lender.allocate(a, 2 * MiB);
  EXPECT_EQ(reason_of(lender.try_allocate_at(a, 0, 2 * MiB)), outcome::invalid_argument) << "lent already";
  lender.deallocate(a, lent, 2 * MiB);
  EXPECT_EQ(reason_of(lender.try_allocate_at(a, 0, 0)), outcome::invalid_argument) << "no page";
  EXPECT_EQ(reason_of(lender.try_allocate_at(a, 4096, 2 * MiB)), outcome::invalid_argument) << "not at a page";
  EXPECT_THROW((page_lender{gpumem::pool_resource{gpumem::cuda_resource{device}}, GiB}), std::invalid_argument);
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(page_loans, refusals_of_the_driver_leave_nothing) {
  pool r{device};
  page_lender lender{r, GiB};
  auto const before = device_bytes();
  for (auto const* const call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    for (unsigned refusals : {1u, 3u}) { // the pool asks three times at most
      for (unsigned i = 1; i <= refusals; ++i) simulator::fail_call(call, i, CUDA_ERROR_NOT_PERMITTED);
      auto const got = lender.try_allocate_at(a, 8 * MiB, 4 * MiB);
      EXPECT_EQ(r.statistics().lent, got ? 4 * MiB : 0) << call;
      if (got) lender.deallocate(a, *got, 4 * MiB);
      a.synchronize();
      r.trim();
      EXPECT_EQ(device_bytes(), before) << call << refusals;
      EXPECT_TRUE(is_consistent(r));
    }
  }
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(page_loans, threads_borrow_and_allocate_at_one_limit) {
  pool r{device, {.limit = 32 * MiB}};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      gpumem::device_guard const here{device};
      gpumem::stream mine{device};
      page_lender lender{r, 256 * MiB};
      for (std::size_t n = 0; n < 60; ++n) {
        auto const bytes = (1 + (n + i) % 5) * 2 * MiB;
        auto const got = (n + i) % 2 ? lender.try_allocate(mine, bytes) : r.try_allocate(mine, bytes);
        if (!got) continue;
        (n + i) % 2 ? lender.deallocate(mine, *got, bytes) : r.deallocate(mine, *got, bytes);
        if (n % 4 == 0) mine.synchronize();
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_LE(r.statistics().peak_reserved, 32 * MiB);
  EXPECT_EQ(r.statistics().lent, 0u);
  EXPECT_TRUE(is_consistent(r));
}

} // namespace
