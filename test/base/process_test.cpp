// The end of a process with running threads and pending work, and fork.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/parking_resource.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::task;

class process : public testing::Test {
protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  std::chrono::steady_clock::time_point const began = std::chrono::steady_clock::now();
  // Returns whether less than 20 s have passed: far more than an exit needs, far less than a hang.
  bool in_time() const { return std::chrono::steady_clock::now() - began < 20s; }
};

task<> wait_for(gpumem::stream_ref stream) { co_await gpumem::completion(stream); }
task<> wait_for_memory(test::parking_resource resource, gpumem::stream_ref stream) {
  auto const deadline = gpumem::detail::sync::now() + 1h;
  auto const block = co_await resource.acquire(stream, 100, {.deadline = deadline});
}

// Work that never completes, a coroutine that waits for it, and a coroutine that waits for memory.
struct everything_running {
  gpumem::stream stream{gpumem::device{0}};
  gpumem::event never{gpumem::device{0}};
  test::parking_resource resource{100};
  gpumem::allocation block = resource.acquire(stream, 100).wait();
  std::optional<test::started> gpu, memory;
  everything_running() {
    gpumem::simulator::never_complete(never.get());
    never.record(stream);
    gpu.emplace(test::start(wait_for(stream)));
    memory.emplace(test::start(wait_for_memory(resource, stream)));
  }
};

TEST_F(process, exits_with_static_objects_that_die_before_the_driver) {
  EXPECT_EXIT(
      {
        gpumem::driver_api::driver();
        static everything_running const all;
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

TEST_F(process, exits_with_static_objects_that_die_after_the_driver) {
  EXPECT_EXIT(
      {
        static std::optional<everything_running> all; // constructed before the driver registers its exit function
        all.emplace();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

TEST_F(process, exits_with_waiting_coroutines) {
  EXPECT_EXIT(
      {
        new everything_running;
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

TEST_F(process, exit_on_the_library_thread_ends_it) {
  EXPECT_EXIT(
      {
        auto body = []() -> task<> {
          co_await test::hop{gpumem::default_executor()};
          std::exit(0);
        };
        gpumem::sync_wait(body());
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

TEST_F(process, exits_while_the_library_thread_never_returns) {
  EXPECT_EXIT(
      {
        std::atomic<bool> busy{false};
        auto body = [&]() -> task<> {
          co_await test::hop{gpumem::default_executor()};
          busy = true;
          for (;;) std::this_thread::yield();
        };
        auto const running = new test::started{test::start(body())};
        while (!busy) std::this_thread::yield();
        std::exit(running->done() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

TEST_F(process, exits_while_a_timer_callback_never_returns) {
  EXPECT_EXIT(
      {
        // Constructed before the driver registers its exit function, and destroyed after that has run.
        static struct endless final : gpumem::detail::timer {
          std::atomic<bool> busy{false};
          void expire() noexcept override {
            busy = true;
            for (;;) std::this_thread::yield();
          }
          ~endless() { gpumem::detail::cancel_timer(*this); }
        } one;
        gpumem::detail::start_timer(one, gpumem::detail::sync::now());
        while (!one.busy) std::this_thread::yield();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

TEST_F(process, exit_inside_a_timer_callback_ends_it) {
  EXPECT_EXIT(
      {
        static struct last final : gpumem::detail::timer {
          void expire() noexcept override { std::exit(0); }
          ~last() { gpumem::detail::cancel_timer(*this); }
        } one;
        gpumem::detail::start_timer(one, gpumem::detail::sync::now());
        for (;;) std::this_thread::yield();
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

// The library thread begins waits while the process exits, until one is refused, and then the first one that would
// resume on that thread itself. Ends with status 0 if that one is refused too.
void exit_while_waits_begin() {
  auto& later = gpumem::default_executor(); // so its thread ends after those of the reactors
  static gpumem::thread_executor& elsewhere = *new gpumem::thread_executor;
  static auto& stream = *new gpumem::stream{gpumem::device{0}};
  static auto& never = *new gpumem::event{gpumem::device{0}};
  gpumem::simulator::never_complete(never.get());
  never.record(stream);
  static std::atomic<int> refused{0};
  auto wait = [](gpumem::executor* resumes) -> task<> {
    try {
      co_await gpumem::completion(never, {.resume_on = resumes});
    } catch (gpumem::cuda_error const&) { ++refused; }
  };
  auto keep = [](task<> body) { [[maybe_unused]] auto* const kept = new test::started{test::start(std::move(body))}; };
  std::atomic<bool> begun{false};
  auto body = [&]() -> task<> {
    co_await test::hop{later};
    do {
      keep(wait(&elsewhere));
      begun = true;
      std::this_thread::yield();
    } while (refused == 0);
    keep(wait(nullptr));
    std::_Exit(refused == 2 ? 0 : 1);
  };
  keep(body());
  while (!begun) std::this_thread::yield();
  std::exit(2);
}

TEST_F(process, makes_no_reactor_after_the_reactors_have_ended) {
  EXPECT_EXIT(exit_while_waits_begin(), testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

TEST_F(process, makes_no_driver_call_after_the_driver_ended) {
  EXPECT_EXIT(
      {
        struct last_word {
          std::optional<everything_running> all;
          ~last_word() {
            auto const calls = gpumem::driver_api::driver_calls();
            bool const refused =
                all->resource.acquire(all->stream, 1).try_now().error().reason == gpumem::outcome::device_lost;
            all.reset();
            std::_Exit(
                !gpumem::driver_api::driver_alive() && refused && gpumem::driver_api::driver_calls() == calls ? 0 : 1);
          }
        };
        static last_word word;
        word.all.emplace();
        std::exit(2);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

// Checks calls in a forked child: those that need the driver fail, and none hangs.
int child(everything_running& all) {
  if (gpumem::driver_api::driver_alive()) return 1;
  auto const calls = gpumem::driver_api::driver_calls();
  try {
    [[maybe_unused]] auto* const p = all.resource.allocate(all.stream, 1);
    return 2;
  } catch (gpumem::cuda_error const&) {}
  if (all.resource.acquire(all.stream, 1).try_now()) return 3;
  try {
    gpumem::sync_wait(gpumem::completion(all.stream));
    return 4;
  } catch (gpumem::cuda_error const&) {}
  all.block.reset(); // does nothing
  all.resource.deallocate(all.stream, &all, 1);
  return gpumem::driver_api::driver_calls() == calls ? 0 : 5;
}

TEST_F(process, forked_child_refuses_to_allocate_and_exits) {
  EXPECT_EXIT(
      {
        static everything_running all;
        auto const pid = fork();
        if (pid == 0) std::exit(child(all)); // runs all destructors
        int status = 0;
        waitpid(pid, &status, 0);
        bool const alive = gpumem::driver_api::driver_alive() && all.resource.state().used() == 100;
        std::_Exit(!alive ? 6 : WIFEXITED(status) ? WEXITSTATUS(status) : 7);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_TRUE(in_time());
}

} // namespace
