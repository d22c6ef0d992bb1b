// gpumem's awaitables in coroutines of other people's making: what a promise may do to them.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <coroutine>
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
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/parking_resource.hpp"
#include "probe_promises.hpp"

namespace {

using namespace std::chrono_literals;
namespace simulator = gpumem::simulator;

class stepped_device final : public testing::Environment {
public:
  void SetUp() override { simulator::load({.devices = 2, .mode = simulator::stepping::manual}); }
};
[[maybe_unused]] auto* const registered = testing::AddGlobalTestEnvironment(new stepped_device);

class foreign_coroutine : public testing::Test {
protected:
  static constexpr auto nothing = gpumem::outcome::deadline;

  void TearDown() override {
    simulator::run_until_idle();
    EXPECT_NO_THROW(simulator::expect_silent());
  }
  void run_posted() {
    executor.wait_for_post();
    EXPECT_TRUE(executor.run_one());
  }
  auto request(std::size_t bytes, std::stop_token token = {}) {
    return gpumem::acquire(resource, stream, bytes, {.resume_on = &executor}, std::move(token));
  }
  auto wait(std::stop_token token = {}) {
    return gpumem::completion(stream, {.resume_on = &executor}, std::move(token));
  }

  gpumem::stream stream{gpumem::device{0}};
  test::parking_resource resource{512};
  test::manual_executor executor;
  gpumem::outcome told = nothing;
};

template <class Probe> class probe_promises : public foreign_coroutine {
protected:
  void expect_stopped(auto const& running) { test::expect_stopped<Probe>(running, told, nothing); }
};
TYPED_TEST_SUITE(probe_promises, test::probes);

TYPED_TEST(probe_promises, are_not_suspended_where_memory_is_at_hand) {
  auto const running = TypeParam::await(this->request(512), this->told);
  EXPECT_TRUE(running.done());
  EXPECT_EQ(this->told, gpumem::outcome::granted);
  EXPECT_EQ(this->resource.state().used(), 0u);
  EXPECT_FALSE(this->executor.posted());
}

TYPED_TEST(probe_promises, are_resumed_with_memory_that_they_waited_for) {
  auto held = this->request(512).wait();
  auto const running = TypeParam::await(this->request(256), this->told);
  EXPECT_FALSE(running.done());
  held.reset();
  this->run_posted();
  EXPECT_TRUE(running.done());
  EXPECT_EQ(this->told, gpumem::outcome::granted);
  EXPECT_EQ(this->resource.state().used(), 0u);
}

TYPED_TEST(probe_promises, are_stopped_while_they_wait_for_memory) {
  auto const held = this->request(512).wait();
  std::stop_source source;
  auto const running = TypeParam::await(this->request(256, source.get_token()), this->told);
  source.request_stop();
  this->run_posted();
  this->expect_stopped(running);
  EXPECT_TRUE(this->resource.state().idle());
}

TYPED_TEST(probe_promises, are_stopped_before_they_ask_for_memory) {
  std::stop_source source;
  source.request_stop();
  auto const running = TypeParam::await(this->request(256, source.get_token()), this->told);
  this->expect_stopped(running);
  EXPECT_EQ(this->resource.state().tries(), 0u);
}

TYPED_TEST(probe_promises, are_refused_memory_by_an_exception) {
  auto const held = this->request(512).wait();
  auto const running = TypeParam::await(this->request(256), this->told);
  this->resource.state().close();
  this->run_posted();
  EXPECT_EQ(this->told, gpumem::outcome::closed); // no stop, so that even P2300's throws
}

TYPED_TEST(probe_promises, are_told_of_their_deadline_by_an_exception) {
  auto const held = this->request(512).wait();
  this->told = gpumem::outcome::granted;
  auto const soon = gpumem::sync::now() + 1ms;
  auto const running = TypeParam::await(
      gpumem::acquire(this->resource, this->stream, 256, {.resume_on = &this->executor, .deadline = soon}), this->told);
  while (!running.done()) {
    if (!this->executor.run_one()) std::this_thread::yield();
  }
  EXPECT_EQ(this->told, gpumem::outcome::deadline); // no stop, so that even P2300's throws
}

TYPED_TEST(probe_promises, are_stopped_inside_the_callbacks_constructor) {
  auto const held = this->request(512).wait();
  auto const asking = TypeParam::await(
      gpumem::acquire(this->resource, this->stream, 256, {.resume_on = &this->executor}, test::late_token{}),
      this->told);
  this->expect_stopped(asking);
  this->told = this->nothing;
  simulator::work(this->stream, {}, 1us);
  auto const waiting = TypeParam::await(
      gpumem::completion(this->stream, {.resume_on = &this->executor}, test::late_token{}), this->told);
  this->expect_stopped(waiting);
  EXPECT_FALSE(this->executor.posted());
}

TYPED_TEST(probe_promises, are_not_suspended_where_the_device_is_done) {
  simulator::run_until_idle(); // what the last user of the stream left
  auto const running = TypeParam::await(this->wait(), this->told);
  EXPECT_TRUE(running.done());
  EXPECT_EQ(this->told, gpumem::outcome::granted);
}

TYPED_TEST(probe_promises, are_resumed_when_the_device_is_done) {
  bool worked = false;
  simulator::work(this->stream, {}, 1us, [&] { worked = true; });
  auto const running = TypeParam::await(this->wait(), this->told);
  EXPECT_FALSE(running.done());
  simulator::run_until_idle();
  this->run_posted();
  EXPECT_TRUE(running.done());
  EXPECT_TRUE(worked);
  EXPECT_EQ(this->told, gpumem::outcome::granted);
}

TYPED_TEST(probe_promises, are_stopped_while_they_wait_for_the_device) {
  simulator::work(this->stream, {}, 1us);
  std::stop_source source;
  auto const running = TypeParam::await(this->wait(source.get_token()), this->told);
  source.request_stop();
  this->run_posted();
  this->expect_stopped(running);
}

TYPED_TEST(probe_promises, are_stopped_before_they_ask_the_device) {
  simulator::work(this->stream, {}, 1us);
  std::stop_source source;
  source.request_stop();
  auto const running = TypeParam::await(this->wait(source.get_token()), this->told);
  this->expect_stopped(running);
}

TYPED_TEST(probe_promises, are_destroyed_while_they_wait) {
  auto const held = this->request(512).wait();
  simulator::work(this->stream, {}, 1us);
  {
    auto const asking = TypeParam::await(this->request(256), this->told);
    auto const waiting = TypeParam::await(this->wait(), this->told);
  }
  simulator::run_until_idle();
  EXPECT_TRUE(this->resource.state().idle());
  EXPECT_FALSE(this->executor.posted());
  EXPECT_EQ(this->told, this->nothing);
}

TEST_F(foreign_coroutine, is_gone_when_its_promise_is_told_of_a_stop) {
  auto const held = request(512).wait();
  test::detached::ends ends;
  simulator::work(stream, {}, 1us);
  std::stop_source source;
  test::detached::await(request(256, source.get_token()), ends);
  test::detached::await(wait(source.get_token()), ends);
  source.request_stop();
  run_posted();
  run_posted();
  EXPECT_EQ(ends.stopped, 2);
  test::detached::await(request(256, source.get_token()), ends); // before they begin
  test::detached::await(wait(source.get_token()), ends);
  EXPECT_EQ(ends.stopped, 4);
  test::detached::await(gpumem::acquire(resource, stream, 256, {.resume_on = &executor}, test::late_token{}), ends);
  test::detached::await(gpumem::completion(stream, {.resume_on = &executor}, test::late_token{}), ends);
  EXPECT_EQ(ends.stopped, 6);
  EXPECT_EQ(ends.over, 0);
  EXPECT_TRUE(resource.state().idle());
}

TEST_F(foreign_coroutine, is_gone_when_it_has_what_it_waited_for) {
  auto held = request(512).wait();
  test::detached::ends ends;
  std::stop_source source;
  test::detached::await(request(256, source.get_token()), ends);
  held.reset();
  run_posted();
  EXPECT_EQ(ends.over, 1);
  simulator::work(stream, {}, 1us);
  test::detached::await(wait(source.get_token()), ends);
  simulator::run_until_idle();
  while (!executor.run_one()) std::this_thread::yield();
  EXPECT_EQ(ends.over, 2);
  EXPECT_EQ(ends.stopped, 0);
}

TEST_F(foreign_coroutine, sees_what_is_awaited_where_its_promise_transforms_it) {
  simulator::work(stream, {}, 1us);
  auto const running = test::probe<test::transforming_promise>::await(wait(), told);
  simulator::run_until_idle();
  run_posted();
  EXPECT_EQ(running.promise().awaited, 1);
  EXPECT_EQ(running.promise().suspended, 1);
}

} // namespace
