// Waiting for memory step by step, with a parking_resource: every way in which a wait can end.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/allocation_count.hpp"
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/parking_resource.hpp"
#include "waiter_fixture.hpp"

namespace {

using gpumem::allocation;
using gpumem::outcome;
using gpumem::sync_wait;
using gpumem::task;
using test::parking_resource;

class waiter_test : public test::waiter_fixture {
protected:
  // A request that records how it ended.
  task<> request(std::size_t bytes, std::optional<outcome>* ended, allocation* keep = nullptr,
                 std::stop_token token = {}) {
    try {
      auto block = co_await resource.acquire(stream, bytes, {.resume_on = &executor}, token);
      *ended = outcome::granted;
      if (keep) *keep = std::move(block);
    } catch (gpumem::acquire_error const& e) { *ended = e.reason(); } catch (gpumem::out_of_memory const& e) {
      *ended = e.reason();
    }
  }
};

TEST_F(waiter_test, request_for_free_memory_does_not_suspend_or_allocate_on_the_host) {
  auto body = [&]() -> task<std::size_t> {
    auto const before = test::host_allocations();
    for (int i = 0; i < 100; ++i) auto const block = co_await resource.acquire(stream, 64);
    co_return test::host_allocations() - before;
  };
  EXPECT_EQ(sync_wait(body()), 0u);
  EXPECT_EQ(resource.state().parked(), 0u);
  EXPECT_EQ(resource.state().tries(), 100u);
}

TEST_F(waiter_test, request_on_an_own_stream_makes_no_driver_call) {
  sync_wait(resource.acquire(stream, 64)).reset();
  auto const before = gpumem::driver_api::driver_calls();
  for (int i = 0; i < 100; ++i) sync_wait(resource.acquire(stream, 64)).reset();
  EXPECT_EQ(gpumem::driver_api::driver_calls(), before);
}

TEST_F(waiter_test, freed_memory_resumes_a_request_through_its_executor) {
  auto block = resource.acquire(stream, 1000).wait();
  std::optional<outcome> ended;
  allocation mine;
  auto const running = test::start(request(100, &ended, &mine));
  EXPECT_EQ(resource.state().parked(), 1u);
  EXPECT_FALSE(executor.posted());
  block.reset();
  EXPECT_TRUE(executor.posted());
  EXPECT_FALSE(ended); // not inside the free
  EXPECT_EQ(resource.state().used(), 100u);
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(ended, outcome::granted);
  EXPECT_EQ(mine.bytes(), 100u);
  EXPECT_EQ(mine.stream().get(), stream.get());
  mine.reset();
}

TEST_F(waiter_test, closed_resource_ends_a_waiting_request) {
  auto block = resource.acquire(stream, 1000).wait();
  std::optional<outcome> first, second, later;
  auto const a = test::start(request(100, &first));
  auto const b = test::start(request(100, &second));
  resource.state().close();
  while (executor.run_one()) {}
  EXPECT_EQ(first, outcome::closed);
  EXPECT_EQ(second, outcome::closed);
  auto const c = test::start(request(1, &later));
  EXPECT_EQ(later, outcome::closed);
  block.reset();
}

TEST_F(waiter_test, request_larger_than_the_limit_fails_at_once) {
  std::optional<outcome> ended;
  auto const running = test::start(request(2000, &ended));
  EXPECT_EQ(ended, outcome::too_large);
  EXPECT_EQ(resource.state().parked(), 0u);
}

TEST_F(waiter_test, request_stopped_before_it_begins_does_not_reach_the_resource) {
  std::stop_source source;
  source.request_stop();
  std::optional<outcome> ended;
  auto const running = test::start(request(10, &ended, nullptr, source.get_token()));
  EXPECT_EQ(ended, outcome::stopped);
  EXPECT_EQ(resource.state().tries(), 0u);
}

TEST_F(waiter_test, stop_ends_a_waiting_request_through_its_executor) {
  auto block = resource.acquire(stream, 1024).wait();
  std::stop_source source;
  std::optional<outcome> ended;
  auto const running = test::start(request(10, &ended, nullptr, source.get_token()));
  source.request_stop();
  EXPECT_TRUE(resource.state().idle());
  EXPECT_FALSE(ended);
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(ended, outcome::stopped);
  block.reset();
}

TEST_F(waiter_test, stop_after_the_grant_is_too_late) {
  auto block = resource.acquire(stream, 1024).wait();
  std::stop_source source;
  std::optional<outcome> ended;
  auto const running = test::start(request(10, &ended, nullptr, source.get_token()));
  block.reset();
  source.request_stop();
  executor.run_one();
  EXPECT_EQ(ended, outcome::granted);
}

TEST_F(waiter_test, stop_inside_the_stop_callback_constructor_ends_the_request) {
  auto block = resource.acquire(stream, 1024).wait();
  try {
    (void)sync_wait(resource.acquire(stream, 10, {}, test::late_token{}));
    ADD_FAILURE() << "it was not stopped";
  } catch (gpumem::acquire_error const& e) { EXPECT_EQ(e.reason(), outcome::stopped); }
  EXPECT_EQ(resource.state().parked(), 0u);
  block.reset();
}

TEST_F(waiter_test, resumed_coroutine_can_request_the_same_stop) {
  // Inline: the stop callback resumes the coroutine, which destroys the running callback.
  auto block = resource.acquire(stream, 1024).wait();
  gpumem::inline_executor here;
  std::stop_source source;
  bool ended = false;
  auto body = [&]() -> task<> {
    try {
      (void)co_await resource.acquire(stream, 10, {.resume_on = &here}, source.get_token());
    } catch (gpumem::acquire_error const&) {
      ended = true;
      source.request_stop();
    }
  };
  auto const running = test::start(body());
  source.request_stop();
  EXPECT_TRUE(ended);
  block.reset();
}

TEST_F(waiter_test, destroyed_waiting_request_is_removed) {
  auto block = resource.acquire(stream, 1024).wait();
  std::optional<outcome> ended;
  {
    auto const running = test::start(request(10, &ended));
    EXPECT_FALSE(resource.state().idle());
  }
  EXPECT_TRUE(resource.state().idle());
  block.reset();
  EXPECT_FALSE(executor.posted());
}

TEST_F(waiter_test, request_destroyed_after_the_grant_frees_its_memory) {
  auto block = resource.acquire(stream, 1024).wait();
  std::optional<outcome> ended;
  {
    auto const running = test::start(request(10, &ended));
    block.reset();
    EXPECT_TRUE(executor.posted());
    EXPECT_EQ(resource.state().used(), 10u);
  }
  EXPECT_EQ(resource.state().used(), 0u);
  EXPECT_FALSE(executor.run_one());
}

TEST_F(waiter_test, first_request_is_served_first_and_is_not_overtaken) {
  auto block = resource.acquire(stream, 1000).wait();
  std::optional<outcome> big, small;
  auto const a = test::start(request(600, &big));
  auto const b = test::start(request(10, &small)); // would fit, but came later
  EXPECT_EQ(resource.state().parked(), 2u);
  EXPECT_EQ(resource.acquire(stream, 10).try_now().error().reason, outcome::exhausted);
  block.reset();
  executor.run_one();
  EXPECT_EQ(big, outcome::granted);
  EXPECT_FALSE(small);
  executor.run_one();
  EXPECT_EQ(small, outcome::granted);
}

TEST_F(waiter_test, removed_first_request_lets_the_next_be_served) {
  auto block = resource.acquire(stream, 500).wait();
  std::optional<outcome> big, small, last;
  std::stop_source source;
  auto const a = test::start(request(1000, &big, nullptr, source.get_token()));
  auto b = test::start(request(900, &small));
  auto const c = test::start(request(10, &last));
  source.request_stop();
  EXPECT_FALSE(last);
  b.destroy(); // now the first request fits
  while (executor.run_one()) {}
  EXPECT_EQ(big, outcome::stopped);
  EXPECT_FALSE(small);
  EXPECT_EQ(last, outcome::granted);
  block.reset();
}

TEST_F(waiter_test, many_requests_resume_inline_without_stack_growth) {
  // Each resumed coroutine frees and thereby grants the next request: the flushes must not nest.
  gpumem::inline_executor here;
  auto block = resource.acquire(stream, 1024).wait();
  int granted = 0;
  auto body = [&]() -> task<> {
    auto const mine = co_await resource.acquire(stream, 1024, {.resume_on = &here});
    ++granted;
  };
  std::vector<test::started> all;
  for (int i = 0; i < 100'000; ++i) all.push_back(test::start(body()));
  block.reset();
  EXPECT_EQ(granted, 100'000);
}

TEST_F(waiter_test, thread_waits_without_a_coroutine) {
  EXPECT_EQ(resource.acquire(stream, 10).try_now()->bytes(), 10u);
  auto block = resource.acquire(stream, 1024).wait();
  EXPECT_EQ(resource.acquire(stream, 10).try_now().error(), (gpumem::failure{outcome::exhausted, 0, 10}));
  EXPECT_THROW((void)resource.acquire(stream, 2000).wait(), gpumem::out_of_memory);
  auto const soon = gpumem::detail::sync::now() + std::chrono::milliseconds{2};
  EXPECT_EQ(resource.acquire(stream, 10).wait_until(soon).error().reason, outcome::deadline);
  EXPECT_GE(gpumem::detail::sync::now(), soon);
  EXPECT_TRUE(resource.state().idle());
  std::thread frees{[&] {
    while (resource.state().idle()) std::this_thread::yield();
    block.reset();
  }};
  auto const mine = resource.acquire(stream, 10).wait();
  EXPECT_EQ(mine.bytes(), 10u);
  frees.join();
  auto const later = gpumem::detail::sync::now() + std::chrono::hours{1};
  EXPECT_EQ(resource.acquire(stream, 10).wait_until(later)->bytes(), 10u);
}

TEST_F(waiter_test, request_for_zero_bytes_is_granted) {
  auto const nothing = sync_wait(resource.acquire(stream, 0));
  EXPECT_FALSE(nothing);
  EXPECT_EQ(nothing.bytes(), 0u);
  EXPECT_EQ(resource.state().tries(), 0u);
}

TEST_F(waiter_test, invalid_requests_are_refused) {
  EXPECT_THROW((void)sync_wait(resource.acquire(stream, 10, {.alignment = 48})), std::invalid_argument);
  EXPECT_THROW((void)sync_wait(resource.acquire(stream, 10, {.alignment = 0})), std::invalid_argument);
  EXPECT_THROW((void)sync_wait(resource.acquire(stream, SIZE_MAX)), gpumem::out_of_memory);
  EXPECT_THROW((void)sync_wait(resource.acquire(stream, SIZE_MAX - 100, {.alignment = 4096})), gpumem::out_of_memory);
  stream.begin_capture();
  try {
    (void)sync_wait(resource.acquire(stream, 10));
    ADD_FAILURE() << "a capturing stream was served";
  } catch (gpumem::acquire_error const& e) { EXPECT_EQ(e.reason(), outcome::capture_unsupported); }
  gpumem::driver_api::driver().graph_destroy(stream.end_capture());
}

TEST_F(waiter_test, granted_memory_keeps_the_resource_alive) {
  auto other = std::make_unique<parking_resource>(100);
  auto& state = other->state();
  auto block = other->acquire(stream, 100).wait();
  other.reset();
  EXPECT_EQ(state.used(), 100u); // if it were destroyed, ASan would report a use after free
  block.reset();
}

} // namespace
