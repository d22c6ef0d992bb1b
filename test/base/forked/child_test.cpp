// A child is forked while threads of its parent are inside gpumem: each public call must return or throw in the child.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "objects.hpp"

namespace {

constexpr unsigned longest_seconds = 20; // far more than a child needs

// Stops a thread at each of its driver calls and allocations, where it may hold locks, until the test resumes it.
class stops {
public:
  // Makes the calling thread stop from now on.
  static void watch() noexcept { watched = true; }
  // Called by the watched thread; the test forks while the thread waits here.
  static void pause() noexcept {
    if (!watched) return;
    watched = false;
    {
      std::unique_lock held{the().mutex_};
      the().stopped_ = true;
      the().changed_.notify_all();
      the().changed_.wait(held, [] { return !the().stopped_; });
    }
    watched = true;
  }
  static void end() {
    watched = false;
    std::scoped_lock const held{the().mutex_};
    the().ended_ = true;
    the().changed_.notify_all();
  }

  // Called by other threads: waits until the thread stops; returns false if it has ended.
  static bool wait() {
    std::unique_lock held{the().mutex_};
    the().changed_.wait(held, [] { return the().stopped_ || the().ended_; });
    return the().stopped_;
  }
  static void go_on() {
    std::scoped_lock const held{the().mutex_};
    the().stopped_ = false;
    the().changed_.notify_all();
  }

private:
  // Never destroyed: in a child the destructor of the condition variable would wait for the waiting thread.
  static stops& the() noexcept {
    static auto* const all = new (std::malloc(sizeof(stops))) stops;
    return *all;
  }
  static constinit thread_local bool watched;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  bool ended_ = false;
};
constinit thread_local bool stops::watched = false;

// The child's progress, in memory that the parent shares.
class progress {
public:
  progress()
      : at_{static_cast<std::atomic<std::size_t>*>(
            mmap(nullptr, sizeof *at_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))} {
    new (at_) std::atomic<std::size_t>{0};
  }
  void set(std::size_t to) noexcept { *at_ = to; }
  std::string name() const {
    auto const all = forked::calls();
    return *at_ < all.size() ? all[*at_].name : "the destructors, or the exit";
  }

private:
  std::atomic<std::size_t>* at_;
};

// Runs all calls and ends the child; exit status 0 means that all succeeded.
[[noreturn]] void run_child(forked::own_objects* own, progress& at) {
  alarm(longest_seconds);
  auto const before = gpumem::driver_api::driver_calls();
  auto const all = forked::calls();
  for (std::size_t i = 0; i < all.size(); ++i) {
    at.set(i);
    if (!all[i].make(*own)) _exit(1);
  }
  at.set(all.size());
  forked::destroy(own);
  if (gpumem::driver_api::driver_calls() != before) _exit(2);
  std::exit(0); // runs the destructors of static objects and the exit functions
}

// Forks such a child. Returns what went wrong in it; empty if nothing did.
std::string fork_child(forked::own_objects* own) {
  static progress at;
  std::fflush(nullptr);
  auto const child = fork();
  if (child == 0) run_child(own, at);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return "there is no child";
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) return "the child made driver calls";
  if (WIFEXITED(status)) return at.name() + ": not as it must be in a child";
  return at.name() +
         (WTERMSIG(status) == SIGALRM ? ": hangs" : ": ended by signal " + std::to_string(WTERMSIG(status)));
}

class forked_child : public testing::Test {
protected:
  static void SetUpTestSuite() {
    gpumem::simulator::load({.devices = 2});
    gpumem::simulator::set_schedule_hooks([](void*) { stops::pause(); }, nullptr, nullptr);
  }
  // Never destroyed, like most objects of a program that forks.
  forked::shared_objects& shared_ = *new forked::shared_objects;
  forked::own_objects* const childs_ = new forked::own_objects{shared_};
};

TEST_F(forked_child, returns_from_every_call_wherever_a_parent_thread_was_at_the_fork) {
  std::thread other{[this] {
    auto* const own = new forked::own_objects{shared_};
    stops::watch();
    for (auto const& each : forked::calls()) each.make(*own);
    delete own;
    stops::end();
  }};
  std::string wrong;
  std::size_t forks = 0;
  for (; stops::wait(); stops::go_on()) {
    if (!wrong.empty()) continue;
    wrong = fork_child(childs_);
    ++forks;
  }
  other.join();
  EXPECT_EQ(wrong, "") << "at stop " << forks;
  EXPECT_GT(forks, 500u) << "the thread was not stopped";
}

TEST_F(forked_child, returns_from_every_call_while_parent_threads_run) {
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!ended) {
        forked::own_objects own{shared_};
        for (auto const& each : forked::calls()) each.make(own);
      }
    });
  }
  std::string wrong;
  for (int i = 0; i < 40 && wrong.empty(); ++i) wrong = fork_child(childs_);
  ended = true;
  for (auto& each : threads) each.join();
  EXPECT_EQ(wrong, "");
}

// A server that links gpumem, forks its workers, and uses gpumem only in them.
TEST(forked_early, child_forked_before_the_first_use_can_use_the_library) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        gpumem::parse_bytes("1MiB");
        auto const child = fork();
        if (child == 0) {
          gpumem::simulator::load();
          gpumem::device const device{0};
          gpumem::stream stream{device};
          {
            gpumem::pool_resource pool{gpumem::cuda_resource{device}};
            pool.deallocate(stream, pool.allocate(stream, 1000), 1000);
            stream.synchronize();
            gpumem::sync_wait(gpumem::completion(stream));
          }
          bool const right = gpumem::driver_api::driver_alive() && gpumem::simulator::report().bytes_allocated == 0;
          std::exit(right ? 0 : 1);
        }
        int status = 1;
        waitpid(child, &status, 0);
        std::_Exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
      },
      testing::ExitedWithCode(0), "");
}

} // namespace

// The watched thread stops at each allocation; the simulated device's library uses these operators too.
void* operator new(std::size_t bytes) {
  stops::pause();
  if (void* const p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc{};
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
