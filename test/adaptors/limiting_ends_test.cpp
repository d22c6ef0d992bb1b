// Every way in which a wait for a limiting_adaptor ends without memory, at its limit and at its upstream.
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
#include "../pools/limited_waits.hpp"

namespace {

using gpumem::limiting_adaptor;
using gpumem::outcome;
using gpumem_test::MiB;

class limiting_ends : public gpumem_test::limited_waits {
protected:
  limiting_adaptor<gpumem_test::recording_upstream> subject{upstream, {.limit = 100 * MiB}};
};

TEST_F(limiting_ends, stop_of_a_waiting_request_serves_the_next) {
  subject = limiting_adaptor{upstream, {.limit = 100 * MiB, .max_overtakes = 0}};
  auto block = subject.acquire(a, 60 * MiB).wait();
  std::stop_source source;
  request first{*this, subject, b, 60 * MiB, source.get_token()}, second{*this, subject, b, 30 * MiB};
  run_all();
  EXPECT_FALSE(second.ended());
  source.request_stop();
  EXPECT_FALSE(first.ended());
  run_all();
  EXPECT_EQ(first.ended(), outcome::stopped);
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(limiting_ends, stop_during_a_turn_is_too_late_if_upstream_grants) { expect_stop_is_too_late_in_a_turn(subject); }

TEST_F(limiting_ends, stop_during_a_turn_ends_stopped_if_upstream_refuses) {
  upstream.state().capacity = 70 * MiB;
  auto block = subject.acquire(a, 30 * MiB).wait(), other = subject.acquire(a, 40 * MiB).wait();
  std::stop_source source;
  request third{*this, subject, b, 60 * MiB, source.get_token()};
  block.reset();
  source.request_stop();
  run_all();
  EXPECT_EQ(third.ended(), outcome::stopped);
}

TEST_F(limiting_ends, destroyed_request_passes_its_turn_on) { expect_turn_is_passed_on(subject); }

TEST_F(limiting_ends, request_ends_at_its_deadline) { expect_end_at_the_deadline(subject); }

TEST_F(limiting_ends, request_ends_when_the_adaptor_closes) {
  auto block = subject.acquire(a, 60 * MiB).wait(), other = subject.acquire(a, 20 * MiB).wait();
  request first{*this, subject, b, 60 * MiB}, second{*this, subject, b, 30 * MiB}, third{*this, subject, b, 90 * MiB};
  other.reset();
  EXPECT_FALSE(second.ended()) << "it has its turn";
  subject.close();
  run_all();
  for (auto* each : {&first, &second, &third}) EXPECT_EQ(each->ended(), outcome::closed);
  EXPECT_EQ(subject.acquire(a, MiB).try_now().error().reason, outcome::closed);
  EXPECT_EQ(subject.try_allocate(a, MiB).error().reason, outcome::closed);
  EXPECT_THROW((void)subject.allocate_sync(MiB), gpumem::acquire_error);
  request late{*this, subject, b, MiB};
  EXPECT_EQ(late.ended(), outcome::closed);
  block.reset();
  EXPECT_EQ(subject.in_use(), 0u);
}

TEST_F(limiting_ends, request_for_more_than_the_limit_ends_at_once) {
  auto block = subject.acquire(a, 60 * MiB).wait();
  request second{*this, subject, a, 101 * MiB};
  EXPECT_EQ(second.ended(), outcome::too_large);
  EXPECT_EQ(subject.try_allocate(a, 101 * MiB).error().reason, outcome::too_large);
}

TEST_F(limiting_ends, request_larger_than_a_lowered_limit_ends) {
  expect_end_when_the_limit_is_lowered(limiting_adaptor{upstream, {.limit = 100 * MiB, .max_overtakes = 0}});
}

TEST_F(limiting_ends, request_on_a_capturing_stream_ends_at_once) {
  limiting_adaptor source{gpumem::cuda_resource{}, {.limit = 100 * MiB}};
  auto block = source.acquire(a, 60 * MiB).wait();
  request parked{*this, source, b, 60 * MiB};
  b.begin_capture();
  request late{*this, source, b, 60 * MiB};
  EXPECT_EQ(late.ended(), outcome::capture_unsupported);
  block.reset();
  run_all();
  EXPECT_EQ(parked.ended(), outcome::capture_unsupported);
  gpumem::driver_api::driver().graph_destroy(b.end_capture());
  EXPECT_TRUE(source.acquire(b, 100 * MiB).try_now());
}

TEST_F(limiting_ends, request_ends_with_the_failure_of_its_upstream) {
  auto block = subject.acquire(a, 60 * MiB).wait();
  request first{*this, subject, b, 60 * MiB}, second{*this, subject, b, 60 * MiB};
  int draws = 0;
  upstream.state().on_draw = [&] {
    if (++draws == 1) throw gpumem::acquire_error{{outcome::stalled, 0, 60 * MiB}};
  };
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::stalled);
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_EQ(subject.in_use(), 60 * MiB);
  upstream.state().on_draw = [] { throw gpumem::acquire_error{{outcome::stalled, 0, MiB}}; };
  EXPECT_EQ(subject.try_allocate(a, MiB).error().reason, outcome::stalled);
  EXPECT_EQ(subject.in_use(), 60 * MiB);
  upstream.state().on_draw = nullptr;
}

// The upstream has less memory than the limit and does not let requests wait.

TEST_F(limiting_ends, request_ends_exhausted_at_once_if_no_block_is_live) {
  upstream.state().capacity = 50 * MiB;
  request first{*this, subject, a, 60 * MiB};
  EXPECT_EQ(first.ended(), outcome::exhausted);
  EXPECT_EQ(subject.try_allocate(a, 60 * MiB).error().reason, outcome::exhausted);
  EXPECT_EQ(subject.in_use(), 0u);
}

TEST_F(limiting_ends, refused_request_waits_while_a_block_is_live) {
  upstream.state().capacity = 50 * MiB;
  auto block = subject.acquire(a, 40 * MiB).wait();
  request second{*this, subject, b, 20 * MiB};
  run_all();
  EXPECT_FALSE(second.ended()) << "upstream is full, and the limit has room";
  EXPECT_EQ(subject.statistics().waiting, 1u);
  EXPECT_EQ(subject.in_use(), 40 * MiB);
  block.reset();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(limiting_ends, request_ends_exhausted_if_all_is_freed_and_upstream_refuses) {
  upstream.state().capacity = 50 * MiB;
  auto block = subject.acquire(a, 40 * MiB).wait();
  request first{*this, subject, b, 60 * MiB}, second{*this, subject, b, 20 * MiB};
  run_all();
  EXPECT_FALSE(first.ended());
  EXPECT_FALSE(second.ended());
  block.reset();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_FALSE(first.ended()) << "the second may be freed";
  second.block().reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::exhausted);
}

TEST_F(limiting_ends, request_ends_exhausted_when_the_last_other_request_is_refused) {
  upstream.state().capacity = 50 * MiB;
  request first{*this, subject, b, 60 * MiB, {}, false};
  upstream.state().on_draw = [&] { // during a request that the upstream refuses, another one begins to wait
    upstream.state().on_draw = nullptr;
    first.begin();
    EXPECT_FALSE(first.ended());
  };
  subject.set_limit(200 * MiB);
  EXPECT_FALSE(can_have(subject, a, 60 * MiB));
  run_all();
  EXPECT_EQ(first.ended(), outcome::exhausted);
}

} // namespace
