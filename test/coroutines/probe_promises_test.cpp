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

namespace {

using namespace std::chrono_literals;
namespace simulator = gpumem::simulator;

class stepped_device final : public testing::Environment {
public:
  void SetUp() override { simulator::load({.devices = 2, .mode = simulator::stepping::manual}); }
};
[[maybe_unused]] auto* const registered = testing::AddGlobalTestEnvironment(new stepped_device);

// A coroutine that runs at once, and is destroyed with its handle.
template <class Promise> class probe_handle {
public:
  using promise_type = Promise;
  explicit probe_handle(std::coroutine_handle<Promise> frame) noexcept : frame_{frame} {}
  probe_handle(probe_handle&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
  probe_handle& operator=(probe_handle&&) = delete;
  ~probe_handle() {
    if (frame_) frame_.destroy();
  }
  bool done() const { return frame_.done(); }
  Promise& promise() const { return frame_.promise(); }

private:
  std::coroutine_handle<Promise> frame_;
};

template <class Promise> struct probe_base {
  probe_handle<Promise> get_return_object() {
    return probe_handle<Promise>{std::coroutine_handle<Promise>::from_promise(static_cast<Promise&>(*this))};
  }
  std::suspend_never initial_suspend() noexcept { return {}; }
  std::suspend_always final_suspend() noexcept { return {}; }
  void return_void() noexcept {}
  void unhandled_exception() noexcept { std::abort(); } // the bodies below catch what they expect
};

struct plain_promise : probe_base<plain_promise> {};

// The awaiter of an awaitable, kept in place: it does not move.
template <class A> class in_place {
public:
  explicit in_place(A&& what) : operation_{static_cast<A&&>(what).operator co_await()} {}
  bool await_ready() { return operation_.await_ready(); }
  auto await_resume() { return operation_.await_resume(); }

protected:
  decltype(std::declval<A>().operator co_await()) operation_;
};

// Hides its own type from what it awaits.
struct erasing_promise : probe_base<erasing_promise> {
  template <class A> struct erased : in_place<A> {
    using in_place<A>::in_place;
    auto await_suspend(std::coroutine_handle<> h) { return this->operation_.await_suspend(h); }
  };
  template <class A> erased<A> await_transform(A&& what) { return erased<A>{static_cast<A&&>(what)}; }
};

// Counts what it awaits, and passes itself on.
struct transforming_promise : probe_base<transforming_promise> {
  template <class A> struct counted : in_place<A> {
    using in_place<A>::in_place;
    auto await_suspend(std::coroutine_handle<transforming_promise> h) {
      ++h.promise().suspended;
      return this->operation_.await_suspend(h);
    }
  };
  template <class A> counted<A> await_transform(A&& what) {
    ++awaited;
    return counted<A>{static_cast<A&&>(what)};
  }
  int awaited = 0;
  int suspended = 0;
};

// P2300's: a stop is no exception, and what goes on instead is the promise's to say.
struct stoppable_promise : probe_base<stoppable_promise> {
  std::coroutine_handle<> unhandled_stopped() noexcept {
    ++stops;
    return std::noop_coroutine();
  }
  int stops = 0;
};

// A coroutine around the awaitable, awaited by another coroutine: its frame has the operation, and goes first.
template <class T> class wrapper {
public:
  struct promise_type {
    wrapper get_return_object() { return wrapper{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct awaiter {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> h) noexcept {
          return h.promise().outer;
        }
        void await_resume() noexcept {}
      };
      return awaiter{};
    }
    void return_value(T value) { result.emplace(std::move(value)); }
    void unhandled_exception() noexcept { error = std::current_exception(); }
    std::coroutine_handle<> outer;
    std::optional<T> result;
    std::exception_ptr error;
  };
  explicit wrapper(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
  wrapper(wrapper&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
  wrapper& operator=(wrapper&&) = delete;
  ~wrapper() {
    if (frame_) frame_.destroy();
  }
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> outer) {
    frame_.promise().outer = outer;
    return frame_;
  }
  T await_resume() {
    if (frame_.promise().error) std::rethrow_exception(frame_.promise().error);
    return std::move(*frame_.promise().result);
  }

private:
  std::coroutine_handle<promise_type> frame_;
};

template <class A> wrapper<bool> wrap(A what) {
  co_await std::move(what);
  co_return true;
}

struct as_it_is {
  template <class A> A operator()(A what) const { return what; }
};
struct wrapped {
  template <class A> wrapper<bool> operator()(A what) const { return wrap(std::move(what)); }
};

// One coroutine type, and how its body awaits.
template <class Promise, class How = as_it_is> struct probe {
  using promise = Promise;
  template <class Awaitable> static probe_handle<Promise> await(Awaitable what, gpumem::outcome& told) {
    try {
      co_await How{}(std::move(what));
      told = gpumem::outcome::granted;
    } catch (gpumem::acquire_error const& e) { told = e.reason(); }
  }
};

template <class Probe> class probe_promises : public testing::Test {
protected:
  static constexpr auto nothing = gpumem::outcome::deadline;
  static constexpr bool by_promise = std::is_same_v<typename Probe::promise, stoppable_promise>;

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
  // What a stop looks like from outside.
  void expect_stopped(auto const& running) {
    if constexpr (by_promise) {
      EXPECT_EQ(running.promise().stops, 1);
      EXPECT_EQ(told, nothing);
      EXPECT_FALSE(running.done());
    } else {
      EXPECT_EQ(told, gpumem::outcome::stopped);
      EXPECT_TRUE(running.done());
    }
  }

  gpumem::stream stream{gpumem::device{0}};
  test::parking_resource resource{512};
  test::manual_executor executor;
  gpumem::outcome told = nothing;
};

using probes = testing::Types<probe<plain_promise>, probe<erasing_promise>, probe<stoppable_promise>,
                              probe<plain_promise, wrapped>, probe<transforming_promise>>;
TYPED_TEST_SUITE(probe_promises, probes);

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

TEST(transforming_promise, sees_what_is_awaited) {
  gpumem::stream stream{gpumem::device{0}};
  test::manual_executor executor;
  auto told = gpumem::outcome::deadline;
  simulator::work(stream, {}, 1us);
  auto const running = probe<transforming_promise>::await(gpumem::completion(stream, {.resume_on = &executor}), told);
  simulator::run_until_idle();
  executor.wait_for_post();
  executor.run_one();
  EXPECT_EQ(running.promise().awaited, 1);
  EXPECT_EQ(running.promise().suspended, 1);
}

} // namespace
