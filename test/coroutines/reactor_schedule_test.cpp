// The reactor under schedules, seed by seed: threads wait for shared streams and events, and stop and destroy their
// waits.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/simulator.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/scheduled_stop_source.hpp"
#include "device_waits.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::completion;
using gpumem::latency;
using gpumem::task;
namespace simulator = gpumem::simulator;

constexpr std::size_t members = 3;

// The waits of one thread on streams that all threads use.
class member {
public:
  member(std::vector<gpumem::stream>& streams, gpumem::executor& elsewhere, std::uint64_t seed, test::wait_counts& seen)
      : streams_{streams}, elsewhere_{elsewhere}, waits_{seed, seen} {}

  void run(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      auto& on = streams_[waits_.pick(streams_.size())];
      waits_.give_work(on);
      switch (waits_.pick(4)) {
      case 0: gpumem::sync_wait(twice(on)); break;
      case 1: gpumem::sync_wait(waits_.stopped_or_not(on, options())); break;
      case 2: waits_.destroyed(on, options()); break; // while other waits on its stream go on
      default: of_an_event(on); break;
      }
    }
  }

private:
  gpumem::completion_options options() {
    return {.latency = waits_.pick(2) ? latency::low : latency::balanced,
            .resume_on = waits_.pick(2) ? &elsewhere_ : nullptr}; // so each device's two reactors poll
  }

  // Two waits at once, so that one stands behind another in the same queue.
  template <class On> task<> twice(On& on) {
    co_await gpumem::when_all(waits_.awaited(on, options()), waits_.awaited(on, options()));
  }
  void of_an_event(gpumem::stream& on) {
    gpumem::event event{gpumem::device{0}};
    event.record(on);
    gpumem::sync_wait(twice(event));
  }

  std::vector<gpumem::stream>& streams_;
  gpumem::executor& elsewhere_;
  test::device_waits waits_;
};

gpumem::detail::schedule::result run_seed(std::uint64_t seed, std::vector<gpumem::stream>& streams,
                                          gpumem::executor& elsewhere, test::wait_counts& seen) {
  simulator::seed(seed);
  test::let_reactors_forget(seed);
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < members; ++i) {
    bodies.emplace_back([&, i] { member{streams, elsewhere, seed * members + i, seen}.run(3); });
  }
  return gpumem::detail::schedule::run(seed, std::move(bodies));
}

class reactor_schedule : public testing::Test {
protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) streams.emplace_back(gpumem::device{0});
  }
  std::vector<gpumem::stream> streams;
  gpumem::thread_executor elsewhere;
};

// A wait that never ends is a deadlock, which the schedule reports with its seed.
TEST_F(reactor_schedule, completes_every_wait_and_none_before_its_work) {
  test::schedule_seeds const seeds{1'000};
  test::wait_counts seen;
  std::uint64_t switches = 0, refused = 0;
  seeds.each([&](std::uint64_t seed) {
    if (seed % 4 == 0) {
      simulator::fail_call("cuEventQuery", 1 + seed / 4 % 8, CUDA_ERROR_INVALID_HANDLE);
      ++refused;
    }
    switches += run_seed(seed, streams, elsewhere, seen).switches;
    ASSERT_EQ(seen.early, 0u) << "GPUMEM_SEED=" << seed;
    ASSERT_LE(seen.failed, refused) << "GPUMEM_SEED=" << seed; // one error is reported to one wait
    ASSERT_NO_THROW(simulator::expect_silent()) << "GPUMEM_SEED=" << seed;
  });
  std::printf("%llu seeds, %llu switches: completed %zu, stopped %zu, failed %zu, destroyed %zu\n",
              static_cast<unsigned long long>(seeds.count()), static_cast<unsigned long long>(switches), seen.completed,
              seen.stopped, seen.failed, seen.destroyed);
  if (seeds.alone()) return;
  EXPECT_GT(seen.completed, seeds.count());
  EXPECT_GT(seen.stopped, seeds.count() / 100);
  EXPECT_GT(seen.failed, seeds.count() / 100);
  EXPECT_GT(seen.destroyed, seeds.count() / 10);
}

TEST_F(reactor_schedule, equal_seeds_give_equal_runs) {
  test::wait_counts ignored;
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    run_seed(seed, streams, elsewhere, ignored); // warm-up: what first uses create
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    test::wait_counts one, two;
    auto const once = run_seed(seed, streams, elsewhere, one), again = run_seed(seed, streams, elsewhere, two);
    ASSERT_EQ(once.marks, again.marks) << seed;
    ASSERT_EQ(once.switches, again.switches) << seed;
    ASSERT_EQ(one.completed, two.completed) << seed;
    ASSERT_EQ(one.stopped, two.stopped) << seed;
  }
}

// Returns the event queries during one millisecond of the schedule's clock while a wait is pending. Virtual time takes
// no real time. `there`: the wait would resume on the library thread.
std::uint64_t questions_in_a_millisecond(latency urgency, bool there) {
  gpumem::stream on{gpumem::device{0}};
  std::uint64_t asked = 0;
  gpumem::detail::schedule::run(1, {[&] {
                                  gpumem::event never{gpumem::device{0}};
                                  simulator::never_complete(never.get());
                                  never.record(on);
                                  test::manual_executor executor;
                                  auto waits = [&]() -> task<> {
                                    co_await completion(never,
                                                        {.latency = urgency, .resume_on = there ? nullptr : &executor});
                                  };
                                  auto const running = test::start(waits());
                                  auto const before = gpumem::driver_api::driver_calls("cuEventQuery");
                                  gpumem::detail::sync::sleep_for(1ms);
                                  asked = gpumem::driver_api::driver_calls("cuEventQuery") - before;
                                }});
  return asked;
}

TEST(reactor_pace, polls_are_ten_microseconds_apart_without_low_latency_waits) {
  for (bool const there : {false, true}) {
    auto const balanced = questions_in_a_millisecond(latency::balanced, there);
    auto const low = questions_in_a_millisecond(latency::low, there);
    EXPECT_LE(balanced, 100u);
    EXPECT_GE(balanced, 20u); // at most 50 us apart
    EXPECT_GE(low, 1'000u);
    std::printf("event queries per millisecond: balanced %llu, low %llu\n", static_cast<unsigned long long>(balanced),
                static_cast<unsigned long long>(low));
  }
}

TEST(reactor_pace, new_waits_make_polls_no_more_frequent_than_a_quarter_of_a_core_allows) {
  gpumem::stream on{gpumem::device{0}};
  for (bool const there : {false, true}) {
    std::uint64_t rounds = 0;
    auto const body = [&] {
      gpumem::event never{gpumem::device{0}};
      simulator::never_complete(never.get());
      never.record(on);
      test::manual_executor executor;
      auto wait = [&]() -> task<> { co_await completion(never, {.resume_on = there ? nullptr : &executor}); };
      std::vector<test::started> running;
      auto const before = gpumem::detail::completion_rounds(gpumem::device{0});
      for (int i = 0; i < 200; ++i) {
        running.push_back(test::start(wait()));
        gpumem::detail::sync::sleep_for(5us);
      }
      rounds = gpumem::detail::completion_rounds(gpumem::device{0}) - before;
    };
    gpumem::detail::schedule::run(1, {body});
    EXPECT_LE(rounds, 45u); // 24 us apart: 4 times the cost of a sleep
    EXPECT_GE(rounds, 20u);
  }
}

// Returns the rounds that the reactor begins in a millisecond, and the driver calls after the current round.
std::pair<std::uint64_t, std::uint64_t> polls_in_a_millisecond() {
  auto const rounds = gpumem::detail::completion_rounds(gpumem::device{0});
  gpumem::detail::sync::sleep_for(100us); // longer than a round
  auto const calls = gpumem::driver_api::driver_calls();
  gpumem::detail::sync::sleep_for(900us);
  return {gpumem::detail::completion_rounds(gpumem::device{0}) - rounds, gpumem::driver_api::driver_calls() - calls};
}

TEST(reactor_pace, no_poll_is_made_without_a_wait) {
  constexpr std::pair<std::uint64_t, std::uint64_t> none{0, 0};
  gpumem::stream on{gpumem::device{0}};
  for (auto const urgency : {latency::low, latency::balanced}) {
    auto const body = [&] {
      gpumem::event never{gpumem::device{0}};
      simulator::never_complete(never.get());
      never.record(on);
      test::manual_executor executor;
      auto wait = [&]() -> task<> {
        try {
          co_await completion(never, {.latency = urgency, .resume_on = &executor});
        } catch (gpumem::cuda_error const&) {
          // A failed query ends the wait.
        }
      };
      {
        auto const ended = test::start(wait());
        simulator::fail_call("cuEventQuery", 1, CUDA_ERROR_INVALID_HANDLE);
        while (!executor.posted()) gpumem::detail::sync::sleep_for(1us);
        EXPECT_EQ(polls_in_a_millisecond(), none) << "ended, but not resumed";
        executor.run_one();
        EXPECT_EQ(polls_in_a_millisecond(), none) << "resumed";
      }
      {
        auto const pending = test::start(wait());
        EXPECT_GT(polls_in_a_millisecond().first, 0u);
      }
      EXPECT_EQ(polls_in_a_millisecond(), none) << "destroyed while pending";
    };
    gpumem::detail::schedule::run(1, {body});
  }
}

// A coroutine that resumes on the polling thread begins its next wait during the round.
TEST(reactor_pace, a_wait_that_begins_during_a_round_keeps_its_first_pause) {
  gpumem::stream on{gpumem::device{0}};
  std::uint64_t rounds = 0;
  auto const body = [&] {
    gpumem::event never{gpumem::device{0}};
    simulator::never_complete(never.get());
    never.record(on);
    gpumem::inline_executor executor;
    std::atomic<int> failed{0};
    auto wait = [&]() -> task<> {
      for (;;) {
        try {
          co_await completion(never, {.resume_on = &executor});
        } catch (gpumem::cuda_error const&) { ++failed; }
      }
    };
    auto const running = test::start(wait());
    for (int i = 1; i <= 2; ++i) { // the reactor learns from the first wait how long the third one may take
      gpumem::detail::sync::sleep_for(45us);
      simulator::fail_call("cuEventQuery", 1, CUDA_ERROR_INVALID_HANDLE);
      while (failed < i) gpumem::detail::sync::sleep_for(1us);
    }
    auto const before = gpumem::detail::completion_rounds(gpumem::device{0});
    gpumem::detail::sync::sleep_for(35us);
    rounds = gpumem::detail::completion_rounds(gpumem::device{0}) - before;
  };
  gpumem::detail::schedule::run(1, {body});
  EXPECT_EQ(rounds, 0u); // 7/8 of 45 us
}

} // namespace
