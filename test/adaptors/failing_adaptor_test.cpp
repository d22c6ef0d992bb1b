// failing_adaptor: which requests it refuses, and that every way to request memory is affected.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
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

namespace {

using gpumem::failing_adaptor;
using gpumem::failing_counts;
using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;

class failing_adaptor_test : public gpumem_test::waiting_fixture {
protected:
  // Returns which of the next `requests` requests are refused, counted from 1.
  template <class Subject> std::vector<int> refused_of(Subject& subject, int requests) {
    std::vector<int> refused;
    for (int i = 1; i <= requests; ++i) {
      if (auto const got = subject.try_allocate(a, 256)) {
        subject.deallocate(a, *got, 256);
      } else {
        EXPECT_EQ(got.error().reason, outcome::exhausted);
        refused.push_back(i);
      }
    }
    return refused;
  }
  template <class Subject> void expect_third_refused(Subject subject) {
    subject.restart({.first = 3});
    EXPECT_TRUE(can_have(subject, a, MiB));
    auto block = subject.acquire(a, MiB).wait();
    EXPECT_THROW((void)subject.acquire(a, MiB).wait(), gpumem::out_of_memory);
    EXPECT_TRUE(can_have(subject, a, MiB));
    EXPECT_EQ(subject.counts(), (failing_counts{4, 1}));
  }
};

TEST_F(failing_adaptor_test, refuses_nothing_by_default) {
  failing_adaptor subject{upstream};
  EXPECT_TRUE(refused_of(subject, 100).empty());
  EXPECT_EQ(subject.counts(), (failing_counts{100, 0}));
}

TEST_F(failing_adaptor_test, refuses_every_third_request) {
  failing_adaptor subject{upstream, {.every = 3}};
  EXPECT_EQ(refused_of(subject, 10), (std::vector{3, 6, 9}));
}

TEST_F(failing_adaptor_test, refuses_requests_by_their_number) {
  failing_adaptor subject{upstream, {.first = 4, .count = 3}};
  EXPECT_EQ(refused_of(subject, 10), (std::vector{4, 5, 6}));
  EXPECT_EQ(subject.counts(), (failing_counts{10, 3}));
  subject.restart({.first = 9, .count = std::numeric_limits<std::uint64_t>::max()});
  EXPECT_EQ(refused_of(subject, 11), (std::vector{9, 10, 11}));
  subject.restart({.every = 5, .first = 1});
  EXPECT_EQ(refused_of(subject, 10), (std::vector{1, 5, 10}));
}

TEST_F(failing_adaptor_test, refuses_the_same_requests_for_the_same_seed) {
  failing_adaptor subject{upstream, {.probability = .25, .seed = 7}};
  auto const first = refused_of(subject, 1000);
  EXPECT_GT(first.size(), 200u);
  EXPECT_LT(first.size(), 300u);
  subject.restart({.probability = .25, .seed = 7});
  EXPECT_EQ(refused_of(subject, 1000), first);
  subject.restart({.probability = .25, .seed = 8});
  EXPECT_NE(refused_of(subject, 1000), first);
  subject.restart({.probability = 1});
  EXPECT_EQ(refused_of(subject, 10).size(), 10u);
}

TEST_F(failing_adaptor_test, invalid_options_are_rejected) {
  for (auto const wrong : {-.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW((failing_adaptor{upstream, {.probability = wrong}}), std::invalid_argument);
    failing_adaptor subject{upstream};
    EXPECT_THROW(subject.restart({.probability = wrong}), std::invalid_argument);
  }
}

TEST_F(failing_adaptor_test, refuses_over_each_kind_of_upstream) {
  expect_third_refused(failing_adaptor{upstream});
  expect_third_refused(failing_adaptor{gpumem::cuda_resource{}});
  expect_third_refused(failing_adaptor{pool_resource{device}});
  expect_third_refused(failing_adaptor{gpumem::any_pool{pool_resource{device}}});
  expect_third_refused(failing_adaptor{gpumem::any_pool{gpumem::cuda_resource{}}});
  expect_third_refused(failing_adaptor{gpumem::statistics_adaptor{pool_resource{device}}});
}

TEST_F(failing_adaptor_test, refused_request_does_not_wait) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  failing_adaptor subject{pool, {.first = 2}};
  auto block = subject.acquire(a, 60 * MiB).wait();
  request refused{*this, subject, b, 60 * MiB};
  EXPECT_EQ(refused.ended(), outcome::exhausted);
  EXPECT_EQ(pool.statistics().waiting, 0u);
  EXPECT_EQ(subject.counts(), (failing_counts{2, 1}));
  EXPECT_EQ(subject.acquire(b, 60 * MiB).try_now().error().reason, outcome::exhausted) << "the pool's own failure";
  EXPECT_EQ(subject.counts(), (failing_counts{3, 1}));
}

TEST_F(failing_adaptor_test, request_that_waits_is_counted_once) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  failing_adaptor subject{pool, {.first = 3}};
  auto block = subject.acquire(a, 60 * MiB).wait();
  request waits{*this, subject, b, 60 * MiB};
  EXPECT_EQ(pool.statistics().waiting, 1u);
  block.reset();
  run_all();
  EXPECT_EQ(waits.ended(), outcome::granted);
  EXPECT_EQ(subject.counts(), (failing_counts{2, 0}));
  request refused{*this, subject, a, MiB};
  EXPECT_EQ(refused.ended(), outcome::exhausted);
  EXPECT_EQ(pool.statistics().live, 60 * MiB);
}

TEST_F(failing_adaptor_test, request_that_waited_for_a_limit_above_is_counted_at_its_grant) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  failing_adaptor inner{pool, {.first = 2}};
  gpumem::limiting_adaptor subject{inner, {.limit = 10 * MiB}};
  auto block = subject.acquire(a, 6 * MiB).wait();
  request first{*this, subject, b, 6 * MiB}, second{*this, subject, b, 6 * MiB};
  EXPECT_EQ(inner.counts().requests, 1u) << "they wait at the adaptor above";
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::exhausted);
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_EQ(inner.counts(), (failing_counts{3, 1}));
  EXPECT_EQ(subject.in_use(), 6 * MiB);
}

TEST_F(failing_adaptor_test, requests_that_wait_below_and_above_are_counted_separately) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  failing_adaptor inner{pool, {.first = 3}};
  gpumem::limiting_adaptor subject{inner, {.limit = 130 * MiB}};
  auto block = subject.acquire(a, 60 * MiB).wait();
  request below{*this, subject, b, 60 * MiB}, above{*this, subject, b, 20 * MiB};
  EXPECT_EQ(inner.counts().requests, 2u);
  block.reset();
  run_all();
  EXPECT_EQ(below.ended(), outcome::granted);
  EXPECT_EQ(above.ended(), outcome::exhausted);
  EXPECT_EQ(inner.counts(), (failing_counts{3, 1}));
}

TEST_F(failing_adaptor_test, refused_request_of_several_blocks_gives_back_those_it_had) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  failing_adaptor subject{pool, {.first = 2}};
  std::optional<outcome> ended;
  auto const body = [&]() -> gpumem::task<> {
    try {
      (void)co_await subject.acquire_all({{a, MiB}, {b, MiB}});
    } catch (gpumem::out_of_memory const& e) { ended = e.reason(); }
  };
  auto const running = test::start(body());
  EXPECT_EQ(ended, outcome::exhausted);
  EXPECT_EQ(subject.counts(), (failing_counts{2, 1}));
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(failing_adaptor_test, work_that_waits_after_preemption_is_not_counted) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  failing_adaptor subject{pool};
  gpumem::scope old{pool};
  gpumem::scope young{subject};
  int ended = 0;
  auto const body = [&]() -> gpumem::task<> {
    auto const one = co_await young.acquire(b, 40 * MiB, {.resume_on = &executor});
    co_await test::hop{executor};
    auto const two = co_await young.acquire(b, 40 * MiB, {.resume_on = &executor});
  };
  auto const wait_for = [&]() -> gpumem::task<> {
    co_await gpumem::with_retry(young, body, [] {}, &executor);
    ++ended;
  };
  auto held = old.acquire(a, 30 * MiB).wait();
  auto const running = test::start(wait_for());
  run_all();
  request first{*this, old, a, 40 * MiB};
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(subject.counts().requests, 2u);
  first.block().reset();
  held.reset();
  run_until([&] {
    gpumem::simulator::run_until_idle();
    return ended == 1;
  });
  EXPECT_EQ(subject.counts(), (failing_counts{4, 0})) << "it began again";
}

TEST_F(failing_adaptor_test, every_request_of_a_program_can_be_refused_once) {
  pool_resource pool{device};
  failing_adaptor subject{pool};
  auto const program = [&] {
    gpumem::buffer one{a, subject, MiB}, two{b, subject, MiB};
    auto const three = subject.acquire(a, MiB).wait();
  };
  std::uint64_t runs = 0;
  for (failing_counts last{0, 1}; last.refused > 0; last = subject.counts()) {
    subject.restart({.first = ++runs});
    try {
      program();
    } catch (gpumem::out_of_memory const&) { EXPECT_EQ(subject.counts().requests, runs); }
    EXPECT_EQ(pool.statistics().live, 0u);
  }
  EXPECT_EQ(runs, 4u);
}

TEST_F(failing_adaptor_test, requests_are_numbered_across_threads) {
  failing_adaptor subject{pool_resource{device}, {.every = 4}};
  std::atomic<int> refused{0};
  std::vector<gpumem::detail::sync::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 100; ++n) {
        auto const got = subject.try_allocate(a, 256);
        refused += !got;
        if (got) subject.deallocate(a, *got, 256);
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(refused, 100);
  EXPECT_EQ(subject.counts(), (failing_counts{400, 100}));
}

} // namespace
