// gpumem's awaitables in coroutines with other promise types.
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

TYPED_TEST(probe_promises, free_memory_does_not_suspend) {
  auto const running = TypeParam::await(this->request(512), this->told);
  EXPECT_TRUE(running.done());
  EXPECT_EQ(this->told, gpumem::outcome::granted);
  EXPECT_EQ(this->resource.state().used(), 0u);
  EXPECT_FALSE(this->executor.posted());
}

TYPED_TEST(probe_promises, freed_memory_resumes) {
  auto held = this->request(512).wait();
  auto const running = TypeParam::await(this->request(256), this->told);
  EXPECT_FALSE(running.done());
  held.reset();
  this->run_posted();
  EXPECT_TRUE(running.done());
  EXPECT_EQ(this->told, gpumem::outcome::granted);
  EXPECT_EQ(this->resource.state().used(), 0u);
}

TYPED_TEST(probe_promises, stop_ends_a_wait_for_memory) {
  auto const held = this->request(512).wait();
  std::stop_source source;
  auto const running = TypeParam::await(this->request(256, source.get_token()), this->told);
  source.request_stop();
  this->run_posted();
  this->expect_stopped(running);
  EXPECT_TRUE(this->resource.state().idle());
}

TYPED_TEST(probe_promises, stop_before_a_request_for_memory_ends_it) {
  std::stop_source source;
  source.request_stop();
  auto const running = TypeParam::await(this->request(256, source.get_token()), this->told);
  this->expect_stopped(running);
  EXPECT_EQ(this->resource.state().tries(), 0u);
}

TYPED_TEST(probe_promises, refused_memory_throws) {
  auto const held = this->request(512).wait();
  auto const running = TypeParam::await(this->request(256), this->told);
  this->resource.state().close();
  this->run_posted();
  EXPECT_EQ(this->told, gpumem::outcome::closed); // no stop, so that even P2300's promise gets an exception
}

TYPED_TEST(probe_promises, deadline_throws) {
  auto const held = this->request(512).wait();
  this->told = gpumem::outcome::granted;
  auto const soon = gpumem::detail::sync::now() + 1ms;
  auto const running = TypeParam::await(
      gpumem::acquire(this->resource, this->stream, 256, {.resume_on = &this->executor, .deadline = soon}), this->told);
  while (!running.done()) {
    if (!this->executor.run_one()) std::this_thread::yield();
  }
  EXPECT_EQ(this->told, gpumem::outcome::deadline); // no stop, so that even P2300's promise gets an exception
}

TYPED_TEST(probe_promises, stop_inside_the_stop_callback_constructor_ends_the_wait) {
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

TYPED_TEST(probe_promises, complete_work_does_not_suspend) {
  simulator::run_until_idle(); // completes the work of the stream's last user
  auto const running = TypeParam::await(this->wait(), this->told);
  EXPECT_TRUE(running.done());
  EXPECT_EQ(this->told, gpumem::outcome::granted);
}

TYPED_TEST(probe_promises, completed_work_resumes) {
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

TYPED_TEST(probe_promises, stop_ends_a_wait_for_the_device) {
  simulator::work(this->stream, {}, 1us);
  std::stop_source source;
  auto const running = TypeParam::await(this->wait(source.get_token()), this->told);
  source.request_stop();
  this->run_posted();
  this->expect_stopped(running);
}

TYPED_TEST(probe_promises, stop_before_a_wait_for_the_device_ends_it) {
  simulator::work(this->stream, {}, 1us);
  std::stop_source source;
  source.request_stop();
  auto const running = TypeParam::await(this->wait(source.get_token()), this->told);
  this->expect_stopped(running);
}

TYPED_TEST(probe_promises, waiting_coroutine_can_be_destroyed) {
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

TEST_F(foreign_coroutine, promise_can_destroy_the_coroutine_at_a_stop) {
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
  test::detached::await(request(256, source.get_token()), ends); // stopped before they begin
  test::detached::await(wait(source.get_token()), ends);
  EXPECT_EQ(ends.stopped, 4);
  test::detached::await(gpumem::acquire(resource, stream, 256, {.resume_on = &executor}, test::late_token{}), ends);
  test::detached::await(gpumem::completion(stream, {.resume_on = &executor}, test::late_token{}), ends);
  EXPECT_EQ(ends.stopped, 6);
  EXPECT_EQ(ends.over, 0);
  EXPECT_TRUE(resource.state().idle());
}

TEST_F(foreign_coroutine, coroutine_can_be_destroyed_when_its_wait_ended) {
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

TEST_F(foreign_coroutine, await_transform_sees_the_awaitable) {
  simulator::work(stream, {}, 1us);
  auto const running = test::probe<test::transforming_promise>::await(wait(), told);
  simulator::run_until_idle();
  run_posted();
  EXPECT_EQ(running.promise().awaited, 1);
  EXPECT_EQ(running.promise().suspended, 1);
}

} // namespace
