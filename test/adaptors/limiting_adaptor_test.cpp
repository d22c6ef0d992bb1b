// The limit of a limiting_adaptor, and the order in which requests wait for it.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"
#include "../pools/limited_waits.hpp"

namespace {

using gpumem::limiting_adaptor;
using gpumem::outcome;
using gpumem_test::MiB;

class limiting_adaptor_test : public gpumem_test::limited_waits {
protected:
  // `below` is any upstream with 100 MiB.
  template <class Upstream> void expect_waits_in_line(Upstream below) {
    limiting_adaptor subject{std::move(below), {.limit = 100 * MiB}};
    auto block = subject.acquire(a, 60 * MiB).wait();
    EXPECT_EQ(subject.in_use(), 60 * MiB);
    request first{*this, subject, b, 60 * MiB}, second{*this, subject, b, 50 * MiB};
    EXPECT_EQ(subject.statistics().waiting, 2u);
    EXPECT_EQ(subject.try_allocate(a, 60 * MiB).error().reason, outcome::exhausted);
    EXPECT_EQ(subject.acquire(a, MiB).try_now().error().reason, outcome::exhausted) << "other requests wait";
    block.reset();
    EXPECT_FALSE(first.ended()) << "resumed inside the free";
    run_all();
    EXPECT_EQ(first.ended(), outcome::granted);
    EXPECT_EQ(first.block().bytes(), 60 * MiB);
    EXPECT_FALSE(second.ended());
    EXPECT_EQ(subject.in_use(), 60 * MiB);
    first.block().reset();
    run_all();
    EXPECT_EQ(second.ended(), outcome::granted);
    second.block().reset();
    EXPECT_EQ(subject.in_use(), 0u);
    EXPECT_EQ(subject.statistics().waiting, 0u);
  }
};

TEST_F(limiting_adaptor_test, request_waits_over_a_source) { expect_waits_in_line(gpumem::cuda_resource{}); }
TEST_F(limiting_adaptor_test, request_waits_over_a_driver_pool) { expect_waits_in_line(gpumem::async_resource{}); }
TEST_F(limiting_adaptor_test, request_waits_over_a_pool) { expect_waits_in_line(gpumem::pool_resource{device}); }
TEST_F(limiting_adaptor_test, request_waits_over_a_foreign_resource) { expect_waits_in_line(upstream); }
TEST_F(limiting_adaptor_test, request_waits_over_an_erased_pool) {
  expect_waits_in_line(gpumem::any_pool{gpumem::pool_resource{device}});
}
TEST_F(limiting_adaptor_test, request_waits_over_an_erased_source) {
  expect_waits_in_line(gpumem::any_pool{gpumem::cuda_resource{}});
}
TEST_F(limiting_adaptor_test, request_waits_over_other_adaptors) {
  expect_waits_in_line(gpumem::statistics_adaptor{gpumem::pool_resource{device}});
  expect_waits_in_line(limiting_adaptor{gpumem::cuda_resource{}, {.limit = 100 * MiB}});
  expect_waits_in_line(limiting_adaptor{gpumem::pool_resource{device}, {.limit = 200 * MiB}});
}

TEST_F(limiting_adaptor_test, request_waits_through_an_erased_handle) {
  limiting_adaptor subject{upstream, {.limit = 100 * MiB}};
  gpumem::any_pool erased{subject};
  auto block = gpumem::acquire(erased, a, 60 * MiB).wait();
  std::optional<std::size_t> got;
  auto body = [&]() -> gpumem::task<> {
    got = (co_await gpumem::acquire(erased, b, 60 * MiB, {.resume_on = &executor})).bytes();
  };
  auto const running = test::start(body());
  EXPECT_FALSE(got);
  block.reset();
  run_all();
  EXPECT_EQ(got, 60 * MiB);
}

TEST_F(limiting_adaptor_test, thread_waits_for_memory_that_another_thread_frees) {
  limiting_adaptor subject{gpumem::cuda_resource{}, {.limit = 100 * MiB}};
  auto block = subject.acquire(a, 60 * MiB).wait();
  gpumem::detail::sync::thread waiting{[&] { EXPECT_EQ(subject.acquire(b, 60 * MiB).wait().bytes(), 60 * MiB); }};
  while (subject.statistics().waiting == 0) std::this_thread::yield();
  block.reset();
  waiting.join();
  EXPECT_EQ(subject.in_use(), 0u);
}

TEST_F(limiting_adaptor_test, counts_requested_bytes_until_they_are_freed) {
  limiting_adaptor subject{upstream, {.limit = 1000}};
  void* const p = subject.allocate(a, 300);
  void* const q = subject.allocate_sync(700);
  EXPECT_EQ(subject.in_use(), 1000u);
  EXPECT_FALSE(can_have(subject, a, 1));
  EXPECT_THROW((void)subject.allocate(a, 1), gpumem::out_of_memory);
  EXPECT_EQ(subject.allocate(a, 0), nullptr);
  subject.deallocate(a, p, 300);
  EXPECT_EQ(subject.in_use(), 700u);
  EXPECT_TRUE(can_have(subject, a, 300));
  EXPECT_FALSE(can_have(subject, a, 301));
  subject.deallocate_sync(q, 700);
  EXPECT_EQ(subject.in_use(), 0u);
}

TEST_F(limiting_adaptor_test, invalid_options_are_rejected) {
  EXPECT_THROW((limiting_adaptor{upstream, {.limit = 0}}), std::invalid_argument);
  EXPECT_THROW((limiting_adaptor{upstream, {.limit = SIZE_MAX}}), std::invalid_argument);
  limiting_adaptor subject{upstream, {.limit = PTRDIFF_MAX}};
  EXPECT_THROW(subject.set_limit(0), std::invalid_argument);
  EXPECT_THROW(subject.set_limit(std::size_t{PTRDIFF_MAX} + 1), std::invalid_argument);
  EXPECT_EQ(subject.limit(), std::size_t{PTRDIFF_MAX});
}

TEST_F(limiting_adaptor_test, block_is_freed_upstream_before_the_next_request_gets_its_bytes) {
  upstream.state().capacity = 60 * MiB;
  limiting_adaptor subject{upstream, {.limit = 60 * MiB}};
  auto block = subject.acquire(a, 60 * MiB).wait();
  gpumem::inline_executor here;
  bool granted = false;
  auto body = [&]() -> gpumem::task<> {
    auto const mine = co_await subject.acquire(b, 60 * MiB, {.resume_on = &here});
    granted = true;
  };
  auto const running = test::start(body());
  block.reset();
  EXPECT_TRUE(granted);
}

TEST_F(limiting_adaptor_test, no_lock_is_held_during_upstream_calls) {
  limiting_adaptor subject{upstream, {.limit = 100 * MiB}};
  std::vector<std::size_t> seen;
  upstream.state().on_draw = [&] { seen.push_back(subject.in_use()); };
  auto block = subject.acquire(a, 60 * MiB).wait();
  request second{*this, subject, b, 50 * MiB};
  block.reset();
  run_all();
  EXPECT_EQ(seen, (std::vector<std::size_t>{60 * MiB, 0})) << "the bytes of a turn are set aside";
  upstream.state().on_draw = nullptr;
}

TEST_F(limiting_adaptor_test, requests_are_served_by_priority_and_then_by_arrival) {
  expect_order_by_priority(limiting_adaptor{upstream, {.limit = 100 * MiB}});
}

TEST_F(limiting_adaptor_test, request_is_overtaken_at_most_max_overtakes_times) {
  for (unsigned const most : {0u, 1u, 3u}) {
    expect_overtakes(most, limiting_adaptor{upstream, {.limit = 100 * MiB, .max_overtakes = most}});
  }
}

TEST_F(limiting_adaptor_test, plain_requests_overtake_at_most_max_overtakes_times) {
  expect_plain_overtakes(limiting_adaptor{upstream, {.limit = 100 * MiB, .max_overtakes = 3}});
}

TEST_F(limiting_adaptor_test, only_requests_that_fit_get_a_turn) {
  expect_turns_only_where_they_fit(limiting_adaptor{upstream, {.limit = 100 * MiB}});
}

TEST_F(limiting_adaptor_test, raised_limit_grants_requests_that_fit) {
  limiting_adaptor subject{upstream, {.limit = 100 * MiB}};
  expect_grant_when_the_limit_is_raised(subject);
  EXPECT_EQ(subject.limit(), 90 * MiB);
}

TEST_F(limiting_adaptor_test, lowered_limit_delays_a_turn) {
  limiting_adaptor subject{upstream, {.limit = 100 * MiB}};
  auto block = subject.acquire(a, 40 * MiB).wait();
  auto other = subject.acquire(a, 60 * MiB).wait();
  request third{*this, subject, b, 60 * MiB};
  other.reset();
  subject.set_limit(90 * MiB); // while the request has a turn
  run_all();
  EXPECT_FALSE(third.ended());
  block.reset();
  run_all();
  EXPECT_EQ(third.ended(), outcome::granted);
}

TEST_F(limiting_adaptor_test, statistics_show_the_limit_and_waiting_requests) {
  limiting_adaptor over_source{upstream, {.limit = 100 * MiB}};
  EXPECT_EQ(over_source.statistics().limit, 100 * MiB);
  gpumem::pool_resource pool{device, {.limit = 50 * MiB}};
  limiting_adaptor wide{pool, {.limit = 60 * MiB}}, narrow{pool, {.limit = 40 * MiB}};
  EXPECT_EQ(wide.statistics().limit, 50 * MiB);
  EXPECT_EQ(narrow.statistics().limit, 40 * MiB);
  auto block = narrow.acquire(a, 30 * MiB).wait();
  EXPECT_EQ(narrow.statistics().live, 30 * MiB);
  request here{*this, narrow, b, 20 * MiB}, there{*this, wide, b, 30 * MiB};
  auto const seen = narrow.statistics();
  EXPECT_EQ(seen.waiting, 2u);
  EXPECT_EQ(seen.waiting_bytes, 50 * MiB);
  EXPECT_GT(seen.oldest_wait_ns, pool.statistics().oldest_wait_ns);
  block.reset();
  run_all();
  EXPECT_EQ(there.ended(), outcome::granted);
  EXPECT_EQ(here.ended(), outcome::granted);
}

TEST_F(limiting_adaptor_test, forwards_functions_of_its_upstream) {
  gpumem::pool_resource pool{device, {.pages = false}};
  limiting_adaptor subject{pool, {.limit = 100 * MiB}};
  void* const p = subject.allocate(a, 10 * MiB);
  EXPECT_EQ(subject.find(p)->bytes, 10 * MiB);
  subject.record_use(p, b);
  subject.deallocate(a, p);
  EXPECT_EQ(subject.in_use(), 0u);
  subject.trim(); // records events of both streams
  gpumem::simulator::run_until_idle();
  EXPECT_GT(subject.trim(), 0u);
}

TEST_F(limiting_adaptor_test, lives_until_its_last_block_is_freed) {
  gpumem::allocation kept;
  {
    limiting_adaptor subject{upstream, {.limit = MiB}};
    auto const same = subject;
    EXPECT_TRUE(subject == same);
    EXPECT_FALSE(subject == (limiting_adaptor{upstream, {.limit = MiB}}));
    auto first = subject.acquire(a, MiB).wait();
    request second{*this, subject, a, MiB};
    first.reset();
    run_all();
    kept = std::move(second.block());
  }
  EXPECT_TRUE(kept);
  kept.reset(); // the state still exists here; otherwise a sanitizer reports it
}

} // namespace
