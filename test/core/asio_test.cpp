// Asio's io_context as an executor: a coroutine that awaits memory or completion resumes where Asio runs.
// SPDX-License-Identifier: Apache-2.0
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/parking_resource.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::task;
namespace simulator = gpumem::simulator;

// A coroutine that nothing awaits; it begins at once.
struct spawned {
  struct promise_type {
    spawned get_return_object() const noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
};

// Awaits the work, and posts the result to the context of the guard. While the guard lives, that context does not end.
template <class T, class Handler, class Guard> spawned finish_in_asio(task<T> work, Handler handler, Guard guard) {
  std::exception_ptr error;
  T result{};
  try {
    result = co_await std::move(work);
  } catch (...) { error = std::current_exception(); }
  asio::post(guard.get_executor(), [handler = std::move(handler), error, result = std::move(result)]() mutable {
    std::move(handler)(error, std::move(result));
  });
}

// Returns the task as an awaitable of Asio, whose coroutines cannot await other types.
template <class T> asio::awaitable<T> in_asio(task<T> work) {
  return asio::async_initiate<asio::use_awaitable_t<> const, void(std::exception_ptr, T)>(
      [](auto handler, task<T> what) {
        auto guard = asio::make_work_guard(handler); // from before the work is spawned until its result is posted
        finish_in_asio(std::move(what), std::move(handler), std::move(guard));
      },
      asio::use_awaitable, std::move(work));
}

class asio_test : public testing::Test {
protected:
  void TearDown() override {
    simulator::run_until_idle();
    EXPECT_NO_THROW(simulator::expect_silent());
  }
  // Runs Asio jobs on this thread until the coroutine has ended.
  void run_until_done(test::started const& running) {
    auto const keep = asio::make_work_guard(context);
    context.restart(); // it stops whenever it has no work
    while (!running.done()) context.run_one();
  }
  asio::io_context context;
  gpumem::stream stream{gpumem::device{0}};
};

TEST_F(asio_test, completion_resumes_on_asio) {
  gpumem::executor_adaptor on_asio{[&](auto job) { asio::post(context, std::move(job)); }};
  bool worked = false;
  std::thread::id resumed_on;
  auto body = [&]() -> task<> {
    simulator::work(stream, {}, 1us, [&] { worked = true; });
    co_await gpumem::completion(stream, {.resume_on = &on_asio});
    EXPECT_TRUE(worked);
    resumed_on = std::this_thread::get_id();
  };
  auto const running = test::start(body());
  run_until_done(running);
  EXPECT_EQ(resumed_on, std::this_thread::get_id());
}

TEST_F(asio_test, granted_request_resumes_on_asio) {
  gpumem::executor_adaptor on_asio{[&](auto job) { asio::post(context, std::move(job)); }};
  test::parking_resource resource{512};
  std::optional<gpumem::allocation> held{gpumem::acquire(resource, stream, 512).wait()};
  auto body = [&]() -> task<> {
    auto const block = co_await gpumem::acquire(resource, stream, 256, {.resume_on = &on_asio});
    EXPECT_EQ(block.bytes(), 256u);
  };
  auto const running = test::start(body());
  EXPECT_FALSE(running.done());
  held.reset(); // only posts
  EXPECT_FALSE(running.done());
  run_until_done(running);
}

TEST_F(asio_test, coroutine_of_asio_awaits_a_task_through_a_wrapper) {
  gpumem::executor_adaptor on_asio{[&](auto job) { asio::post(context, std::move(job)); }};
  test::parking_resource resource{512};
  std::optional<gpumem::allocation> held{gpumem::acquire(resource, stream, 512).wait()};
  std::size_t got = 0;
  auto const waits = [&]() -> task<gpumem::allocation> {
    co_return co_await gpumem::acquire(resource, stream, 256); // resumes on gpumem's own thread
  };
  auto const fails = []() -> task<int> {
    throw std::runtime_error{"failed"};
    co_return 0;
  };
  auto const body = [&]() -> asio::awaitable<void> {
    got = (co_await in_asio(waits())).bytes();
    EXPECT_THROW(co_await in_asio(fails()), std::runtime_error);
  };
  asio::co_spawn(context, body(), asio::detached);
  std::thread frees{[&] {
    std::this_thread::sleep_for(5ms);
    held.reset();
  }};
  context.run(); // does not return while only gpumem has work
  frees.join();
  EXPECT_EQ(got, 256u);
}

TEST_F(asio_test, stop_and_deadline_resume_on_asio) {
  gpumem::executor_adaptor on_asio{[&](auto job) { asio::post(context, std::move(job)); }};
  test::parking_resource resource{512};
  auto const held = gpumem::acquire(resource, stream, 512).wait();
  auto ended = gpumem::outcome::granted;
  std::thread::id resumed_on;
  auto body = [&](gpumem::detail::sync::time_point deadline, std::stop_token token) -> task<> {
    try {
      (void)co_await gpumem::acquire(resource, stream, 256, {.resume_on = &on_asio, .deadline = deadline}, token);
    } catch (gpumem::acquire_error const& e) { ended = e.reason(); }
    resumed_on = std::this_thread::get_id();
  };
  std::stop_source source;
  auto const stopped = test::start(body(gpumem::detail::sync::time_point::max(), source.get_token()));
  std::thread{[&] { source.request_stop(); }}.join(); // only posts
  EXPECT_FALSE(stopped.done());
  run_until_done(stopped);
  EXPECT_EQ(ended, gpumem::outcome::stopped);
  EXPECT_EQ(resumed_on, std::this_thread::get_id());

  resumed_on = {};
  auto const late = test::start(body(gpumem::detail::sync::now() + 1ms, {}));
  run_until_done(late);
  EXPECT_EQ(ended, gpumem::outcome::deadline);
  EXPECT_EQ(resumed_on, std::this_thread::get_id());
}

TEST_F(asio_test, coroutine_destroyed_before_asio_ran_it_does_not_run) {
  test::parking_resource resource{512};
  {
    gpumem::executor_adaptor on_asio{[&](auto job) { asio::post(context, std::move(job)); }};
    auto held = gpumem::acquire(resource, stream, 512).wait();
    auto body = [&]() -> task<> {
      (void)co_await gpumem::acquire(resource, stream, 256, {.resume_on = &on_asio});
      ADD_FAILURE() << "it was resumed";
    };
    auto const running = test::start(body());
    held.reset();
  }
  EXPECT_EQ(context.run(), 1u); // Asio still has the job
  EXPECT_EQ(resource.state().used(), 0u);
}

// The library's thread may still be inside asio::post when the coroutine that it posted has ended.
TEST_F(asio_test, run_returns_when_the_last_coroutine_ended) {
  int suspended = 0;
  for (int round = 0; round < 3'000; ++round) {
    asio::io_context last;
    gpumem::executor_adaptor on_last{[&](auto job) { asio::post(last, std::move(job)); }};
    auto body = [&]() -> task<> {
      simulator::work(stream, {}, 1us);
      co_await gpumem::completion(stream, {.resume_on = &on_last});
    };
    auto const running = test::start(body());
    if (!running.done()) ++suspended;
    auto const keep = asio::make_work_guard(last);
    while (!running.done()) last.run_one();
  }
  EXPECT_GT(suspended, 100); // otherwise the work was complete at once
}

} // namespace
