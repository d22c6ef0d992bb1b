// Requests that pass a limiting_adaptor's limit and then wait at its upstream.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"

namespace {

using gpumem::limiting_adaptor;
using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

// A pool of 60 MiB, of which 40 MiB are allocated, under a limit of 100 MiB.
class limiting_passage : public gpumem_test::waiting_fixture {
protected:
  void TearDown() override {
    block.reset();
    run_all();
    EXPECT_EQ(subject.in_use(), 0u);
    EXPECT_EQ(pool.statistics().live, 0u);
    EXPECT_EQ(subject.statistics().waiting, 0u);
    subject = limiting_adaptor{pool_resource{device}, {.limit = 1}};
    pool = pool_resource{device};
    waiting_fixture::TearDown();
  }
  // `first` waits at the pool and `second` at the limit. `first` ends with outcome `why`, and `second` goes on.
  template <class End> void expect_makes_room(request& first, outcome why, End end) {
    request second{*this, subject, b, 40 * MiB};
    EXPECT_EQ(subject.in_use(), 70 * MiB);
    EXPECT_EQ(pool.statistics().waiting, 1u);
    EXPECT_EQ(subject.statistics().waiting, 2u);
    end();
    run_all();
    if (why != outcome::granted) { EXPECT_EQ(first.ended(), why); }
    EXPECT_EQ(subject.in_use(), 80 * MiB);
    EXPECT_EQ(pool.statistics().waiting, 1u);
    block.reset();
    run_all();
    EXPECT_EQ(second.ended(), outcome::granted);
  }

  pool_resource<gpumem::cuda_resource> pool{device, {.limit = 60 * MiB}};
  limiting_adaptor<pool_resource<gpumem::cuda_resource>> subject{pool, {.limit = 100 * MiB}};
  gpumem::allocation block = subject.acquire(a, 40 * MiB).wait();
};

TEST_F(limiting_passage, request_that_waits_upstream_counts_against_the_limit) {
  request first{*this, subject, b, 30 * MiB};
  EXPECT_FALSE(first.ended());
  EXPECT_EQ(subject.in_use(), 70 * MiB);
  EXPECT_FALSE(can_have(subject, a, 31 * MiB));
  block.reset();
  EXPECT_EQ(subject.in_use(), 30 * MiB);
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(subject.in_use(), 30 * MiB);
}

TEST_F(limiting_passage, request_waits_for_the_limit_before_it_waits_upstream) {
  request first{*this, subject, b, 30 * MiB}, second{*this, subject, b, 50 * MiB};
  EXPECT_EQ(subject.in_use(), 70 * MiB);
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_FALSE(second.ended());
  EXPECT_EQ(subject.in_use(), 80 * MiB);
  EXPECT_EQ(pool.statistics().waiting, 1u);
  first.block().reset();
  simulator::run_until_idle();
  run_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(limiting_passage, stop_ends_the_wait_upstream) {
  std::stop_source source;
  request first{*this, subject, b, 30 * MiB, source.get_token()};
  expect_makes_room(first, outcome::stopped, [&] { source.request_stop(); });
}

TEST_F(limiting_passage, destroyed_operation_ends_the_wait_upstream) {
  request first{*this, subject, b, 30 * MiB};
  expect_makes_room(first, outcome::granted, [&] { first.destroy(); });
}

TEST_F(limiting_passage, operation_destroyed_in_its_turn_returns_its_bytes) {
  request first{*this, subject, b, 30 * MiB};
  block.reset(); // the pool gives the request a turn
  EXPECT_EQ(subject.in_use(), 30 * MiB);
  first.destroy();
  EXPECT_EQ(subject.in_use(), 0u);
}

TEST_F(limiting_passage, deadline_ends_the_wait_upstream) {
  auto const soon = gpumem::detail::sync::now() + std::chrono::milliseconds{2};
  EXPECT_EQ(subject.acquire(b, 30 * MiB).wait_until(soon).error().reason, outcome::deadline);
  EXPECT_EQ(subject.in_use(), 40 * MiB);
}

TEST_F(limiting_passage, lowered_upstream_limit_ends_the_wait_upstream) {
  request first{*this, subject, b, 30 * MiB}, second{*this, subject, b, 20 * MiB};
  pool.set_limit(28 * MiB);
  run_all();
  EXPECT_EQ(first.ended(), outcome::too_large);
  EXPECT_EQ(subject.in_use(), 60 * MiB);
  block.reset();
  simulator::run_until_idle();
  pool.trim();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(limiting_passage, closed_upstream_ends_all_waits) {
  request first{*this, subject, b, 30 * MiB}, second{*this, subject, b, 50 * MiB};
  pool.close();
  run_all();
  EXPECT_EQ(first.ended(), outcome::closed);
  EXPECT_EQ(second.ended(), outcome::closed) << "it was already admitted to the pool";
  EXPECT_EQ(subject.in_use(), 40 * MiB);
}

// The upstream reports the end without holding its lock: the next request, which is resumed inside, takes the same
// lock.
TEST_F(limiting_passage, request_fails_if_upstream_closed_before_it_got_there) {
  auto other = subject.acquire(a, 15 * MiB).wait();
  request first{*this, subject, b, 50 * MiB};
  gpumem::inline_executor here;
  std::optional<outcome> ended;
  auto body = [&]() -> gpumem::task<> {
    try {
      (void)co_await subject.acquire(b, 48 * MiB, {.resume_on = &here});
    } catch (gpumem::acquire_error const& e) { ended = e.reason(); }
  };
  auto const second = test::start(body());
  other.reset();
  pool.close();
  EXPECT_FALSE(ended);
  run_all();
  EXPECT_EQ(first.ended(), outcome::closed);
  EXPECT_EQ(ended, outcome::closed);
  EXPECT_EQ(subject.in_use(), 40 * MiB);
}

TEST_F(limiting_passage, capturing_stream_ends_the_wait_upstream) {
  request first{*this, subject, b, 30 * MiB};
  b.begin_capture();
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::capture_unsupported);
  EXPECT_EQ(subject.in_use(), 0u);
  gpumem::driver_api::driver().graph_destroy(b.end_capture());
}

TEST_F(limiting_passage, closed_adaptor_lets_waits_upstream_go_on) {
  request first{*this, subject, b, 30 * MiB}, second{*this, subject, b, 40 * MiB};
  subject.close();
  run_all();
  EXPECT_EQ(second.ended(), outcome::closed);
  EXPECT_FALSE(first.ended()) << "the upstream decides about it";
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(limiting_passage, adaptors_between_count_a_request_at_its_grant) {
  block.reset();
  gpumem::statistics_adaptor counted{pool};
  limiting_adaptor outer{counted, {.limit = 100 * MiB}};
  auto held = outer.acquire(a, 40 * MiB).wait();
  request first{*this, outer, b, 30 * MiB}, second{*this, outer, b, 40 * MiB};
  EXPECT_EQ(counted.counters().allocations.total, 1);
  held.reset();
  run_all();
  EXPECT_EQ(counted.counters().allocations.total, 2);
  first.block().reset();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_EQ(counted.counters().allocations, (gpumem::counter{1, 1, 3}));
  second.block().reset();
  EXPECT_EQ(outer.in_use(), 0u);
}

TEST_F(limiting_passage, request_waits_through_several_limits) {
  block.reset();
  limiting_adaptor outer{gpumem::any_pool{limiting_adaptor{subject, {.limit = 70 * MiB}}}, {.limit = 90 * MiB}};
  auto held = outer.acquire(a, 40 * MiB).wait();
  request at_pool{*this, outer, b, 25 * MiB}, at_middle{*this, outer, b, 20 * MiB}, at_outer{*this, outer, b, 10 * MiB};
  EXPECT_EQ(outer.in_use(), 85 * MiB);
  EXPECT_EQ(subject.in_use(), 65 * MiB);
  EXPECT_EQ(pool.statistics().waiting, 1u);
  EXPECT_EQ(outer.statistics().waiting, 3u);
  at_middle.destroy();
  run_all();
  EXPECT_FALSE(at_outer.ended()) << "it waits at the inner adaptor now";
  EXPECT_EQ(outer.in_use(), 75 * MiB);
  held.reset();
  run_all();
  EXPECT_EQ(at_pool.ended(), outcome::granted);
  EXPECT_EQ(at_outer.ended(), outcome::granted);
  EXPECT_EQ(outer.in_use(), 35 * MiB);
  EXPECT_EQ(subject.in_use(), 35 * MiB);
}

template <int Deep, class Upstream> auto nested(Upstream below) {
  if constexpr (Deep == 0) {
    return below;
  } else {
    return nested<Deep - 1>(limiting_adaptor<Upstream>{std::move(below), {.limit = 100 * MiB}});
  }
}

TEST_F(limiting_passage, request_waits_through_any_number_of_adaptors) {
  auto deep = nested<40>(subject);
  request through{*this, deep, b, 30 * MiB};
  EXPECT_FALSE(through.ended());
  EXPECT_EQ(deep.in_use(), 30 * MiB);
  EXPECT_EQ(subject.in_use(), 70 * MiB);
  request stopped{*this, deep, b, 25 * MiB};
  stopped.destroy();
  block.reset();
  run_all();
  EXPECT_EQ(through.ended(), outcome::granted);
  EXPECT_EQ(deep.in_use(), 30 * MiB);
}

// 80 MiB of 100 are in use. The limit could serve the requests later, but the pool, of 60 MiB, never could.
TEST_F(limiting_passage, request_that_the_upstream_can_never_serve_does_not_wait_for_the_limit) {
  auto const more = subject.acquire(a, 10 * MiB).wait();
  request at_limit{*this, subject, b, 30 * MiB}, at_pool{*this, subject, b, 60 * MiB + 1},
      aligned{*this, gpumem::aligned_adaptor{subject, {.alignment = 64 * MiB}}, b, 60 * MiB};
  EXPECT_FALSE(at_limit.ended());
  EXPECT_EQ(at_pool.ended(), outcome::too_large);
  request outer{*this, limiting_adaptor{gpumem::any_pool{subject}, {.limit = 200 * MiB}}, b, 90 * MiB};
  EXPECT_EQ(outer.ended(), outcome::too_large);
  auto const soon = gpumem::detail::sync::now() + std::chrono::milliseconds{5};
  EXPECT_EQ(subject.acquire_all({{a, 50 * MiB}, {b, 20 * MiB}}).wait_until(soon).error().reason, outcome::too_large);
  aligned.destroy();
  at_limit.destroy();
}

} // namespace
