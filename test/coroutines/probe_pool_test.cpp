// Requests to a pool in coroutines with other promise types: requests that really wait, and their host allocations.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>

import gpumem;
#include "../support/allocation_count.hpp"
#include "../support/manual_executor.hpp"
#include "probe_promises.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::outcome;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

class stepped_device final : public testing::Environment {
public:
  void SetUp() override { simulator::load({.mode = simulator::stepping::manual}); }
};
[[maybe_unused]] auto* const registered = testing::AddGlobalTestEnvironment(new stepped_device);

template <class Probe> class probe_pool : public testing::Test {
protected:
  static constexpr auto nothing = outcome::closed;

  void TearDown() override {
    EXPECT_EQ(gpumem::statistics_of(pool)->waiting, 0u);
    EXPECT_EQ(gpumem::statistics_of(pool)->live, 0u);
    EXPECT_FALSE(executor.run_one()) << "a posted work item was not run";
    simulator::run_until_idle();
    EXPECT_NO_THROW(simulator::expect_silent());
  }
  auto request(std::size_t bytes, std::stop_token token = {}) {
    auto const in_an_hour = gpumem::detail::sync::now() + 1h;
    return pool.acquire(stream, bytes, {.resume_on = &executor, .deadline = in_an_hour}, std::move(token));
  }
  auto hold(std::size_t bytes) { return pool.acquire(stream, bytes).wait(); }
  bool waits() { return gpumem::statistics_of(pool)->waiting == 1; }
  void run_all() {
    while (executor.run_one()) {}
  }
  // Runs posted items until `done`, while gpumem's own thread runs.
  template <class Done> void run_until(Done done) {
    auto const end = gpumem::detail::sync::now() + 20s;
    while (!done()) {
      if (!executor.run_one()) std::this_thread::yield();
      ASSERT_LT(gpumem::detail::sync::now(), end) << "timed out";
    }
  }
  // Returns the allocations of the last of 8 rounds, since the first ones create things that are kept.
  template <class Round> std::size_t allocations_of(Round round) {
    std::size_t last = 0;
    for (int i = 0; i < 8; ++i) {
      simulator::run_until_idle();
      gpumem::extend::identify(stream, gpumem::device{0}).identity().timeline().poll(); // events return to their pool
      auto const before = test::host_allocations() - test::counted_frame::made;
      round();
      last = test::host_allocations() - test::counted_frame::made - before;
    }
    return last;
  }
  // Awaits `what` while 60 MiB are held, then frees those.
  void expect_granted_after_a_wait(auto what) {
    auto held = hold(60 * MiB);
    told = nothing;
    auto const running = Probe::await(std::move(what), told);
    EXPECT_FALSE(running.done());
    held.reset();
    run_all();
    EXPECT_TRUE(running.done());
    EXPECT_EQ(told, outcome::granted);
  }

  gpumem::stream stream{gpumem::device{0}};
  gpumem::pool_resource<gpumem::cuda_resource> pool{gpumem::device{0}, {.limit = 100 * MiB}};
  test::manual_executor executor;
  outcome told = nothing;
};
TYPED_TEST_SUITE(probe_pool, test::probes);

TYPED_TEST(probe_pool, request_for_free_memory_makes_no_host_allocation) {
  EXPECT_EQ(this->allocations_of([this] { EXPECT_TRUE(TypeParam::await(this->request(60 * MiB), this->told).done()); }),
            0u);
  EXPECT_EQ(this->told, outcome::granted);
  EXPECT_FALSE(this->executor.posted());
}

TYPED_TEST(probe_pool, waiting_request_makes_no_host_allocation) {
  std::stop_source source;
  EXPECT_EQ(this->allocations_of(
                [&, this] { this->expect_granted_after_a_wait(this->request(60 * MiB, source.get_token())); }),
            0u);
}

TYPED_TEST(probe_pool, destroyed_waiting_request_makes_no_host_allocation) {
  std::stop_source source;
  auto const held = this->hold(60 * MiB);
  EXPECT_EQ(this->allocations_of([&, this] {
    auto const running = TypeParam::await(this->request(60 * MiB, source.get_token()), this->told);
    EXPECT_FALSE(running.done());
  }),
            0u);
  EXPECT_FALSE(this->waits());
  EXPECT_EQ(this->told, this->nothing);
}

TYPED_TEST(probe_pool, request_destroyed_after_its_grant_returns_its_memory) {
  auto held = this->hold(60 * MiB);
  {
    auto const running = TypeParam::await(this->request(60 * MiB), this->told);
    held.reset();
  }
  EXPECT_FALSE(this->executor.run_one());
  EXPECT_EQ(this->hold(100 * MiB).bytes(), 100 * MiB);
}

TYPED_TEST(probe_pool, stop_of_a_waiting_request_makes_no_host_allocation) {
  auto const held = this->hold(60 * MiB);
  for (int i = 0; i < 3; ++i) {
    std::stop_source source;
    this->told = this->nothing;
    auto const running = TypeParam::await(this->request(60 * MiB, source.get_token()), this->told);
    EXPECT_TRUE(this->waits());
    auto const before = test::host_allocations();
    source.request_stop();
    EXPECT_EQ(test::host_allocations(), before);
    EXPECT_FALSE(this->waits());
    this->run_all();
    test::expect_stopped<TypeParam>(running, this->told, this->nothing);
  }
}

TYPED_TEST(probe_pool, deadline_throws) {
  auto const held = this->hold(60 * MiB);
  auto const soon = gpumem::detail::sync::now() + 1ms;
  auto const running = TypeParam::await(
      this->pool.acquire(this->stream, 60 * MiB, {.resume_on = &this->executor, .deadline = soon}), this->told);
  this->run_until([&] { return running.done(); });
  EXPECT_EQ(this->told, outcome::deadline);
}

TYPED_TEST(probe_pool, several_blocks_and_adaptors_are_granted_after_a_wait) {
  gpumem::acquire_options const how{.resume_on = &this->executor};
  gpumem::scope work{this->pool, "work"};
  gpumem::limiting_adaptor limited{this->pool, {.limit = 80 * MiB}};
  auto const allocations_of_waits_for = [&, this](auto make) {
    return this->allocations_of([&, this] { this->expect_granted_after_a_wait(make()); });
  };
  EXPECT_EQ(allocations_of_waits_for([&, this] {
              return this->pool.acquire_all({{this->stream, 30 * MiB}, {this->stream, 30 * MiB}}, how);
            }),
            0u);
  EXPECT_EQ(allocations_of_waits_for([&, this] { return work.acquire(this->stream, 60 * MiB, how); }), 0u);
  EXPECT_EQ(allocations_of_waits_for([&, this] { return limited.acquire(this->stream, 60 * MiB, how); }), 0u);
}

TYPED_TEST(probe_pool, preempted_work_is_tried_again) {
  gpumem::acquire_options const how{.resume_on = &this->executor};
  gpumem::scope older{this->pool, "older"}, younger{this->pool, "younger"};
  auto held = this->hold(60 * MiB);
  int tries = 0, rollbacks = 0;
  auto body = [&]() -> gpumem::task<> {
    ++tries;
    auto const first = co_await younger.acquire(this->stream, 20 * MiB, how);
    auto const second = co_await younger.acquire(this->stream, 30 * MiB, how);
  };
  auto const young =
      TypeParam::await(gpumem::with_retry(younger, body, [&] { ++rollbacks; }, &this->executor), this->told);
  EXPECT_TRUE(this->waits());
  auto old_told = this->nothing;
  auto const old = TypeParam::await(older.acquire(this->stream, 40 * MiB, how), old_told);
  this->run_until([&] { return old.done(); });
  EXPECT_EQ(old_told, outcome::granted);
  EXPECT_EQ(rollbacks, 1);
  held.reset();
  this->run_until([&] { return young.done(); });
  EXPECT_EQ(tries, 2);
  EXPECT_EQ(this->told, outcome::granted);
}

} // namespace
