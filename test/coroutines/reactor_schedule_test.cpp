// The reactor under schedules: threads wait for shared streams and events, stop and destroy their waits, seed by seed.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/scheduled_stop_source.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::completion;
using gpumem::latency;
using gpumem::task;
namespace simulator = gpumem::simulator;

constexpr std::size_t members = 3;

struct counts {
  std::size_t completed = 0, stopped = 0, destroyed = 0, early = 0;
};

// One thread's waits on streams that all use: whoever is told of completion must find its own work done.
class member {
public:
  member(std::vector<gpumem::stream>& streams, std::uint64_t seed, counts& seen)
      : streams_{streams}, random_{static_cast<std::uint32_t>(seed * 2 + 1)}, seen_{seen} {}

  void run(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      auto& on = streams_[pick(streams_.size())];
      worked_ = std::make_shared<bool>(false);
      simulator::work(on, {}, 1us, [done = worked_] { *done = true; });
      switch (pick(4)) {
      case 0: gpumem::sync_wait(awaited(on)); break;
      case 1: gpumem::sync_wait(stopped_or_not(on)); break;
      case 2: destroyed(on); break;
      default: gpumem::sync_wait(of_an_event(on)); break;
      }
    }
  }

private:
  unsigned pick(std::size_t of) { return static_cast<unsigned>(random_() / 7 % of); }
  gpumem::completion_options options() { return {.latency = pick(2) ? latency::low : latency::balanced}; }
  void told_complete() {
    ++seen_.completed;
    if (!*worked_) ++seen_.early;
  }

  // Several at once, so that some stand behind others in one order.
  task<> awaited(gpumem::stream& on) {
    auto one = [&]() -> task<> {
      co_await completion(on, options());
      told_complete();
    };
    co_await gpumem::when_all(one(), one());
  }

  task<> stopped_or_not(gpumem::stream& on) {
    test::scheduled_stop_source source;
    auto waits = [&]() -> task<> {
      try {
        co_await completion(on, options(), source.get_token());
        told_complete();
      } catch (gpumem::acquire_error const&) { ++seen_.stopped; }
    };
    auto stops = [&]() -> task<> {
      co_await test::hop{gpumem::library_executor()};
      source.request_stop();
    };
    co_await gpumem::when_all(waits(), stops());
  }

  // One is destroyed while others of its stream wait on.
  void destroyed(gpumem::stream& on) {
    auto waits = [&]() -> task<> {
      auto chosen = options();
      chosen.resume_on = &executor_;
      co_await completion(on, chosen);
    };
    auto const running = test::start(waits());
    for (auto marks = pick(8); marks > 0; --marks) gpumem::sync::mark();
    ++seen_.destroyed;
    if (running.done() && !*worked_) ++seen_.early;
  }

  task<> of_an_event(gpumem::stream& on) {
    gpumem::event event{gpumem::device{0}};
    event.record(on);
    auto one = [&]() -> task<> {
      co_await completion(event, options());
      told_complete();
    };
    co_await gpumem::when_all(one(), one());
  }

  std::vector<gpumem::stream>& streams_;
  std::minstd_rand random_;
  counts& seen_;
  std::shared_ptr<bool> worked_; // work may run after the wait for it was given up
  test::manual_executor executor_;
};

gpumem::schedule::result run_seed(std::uint64_t seed, std::vector<gpumem::stream>& streams, counts& seen) {
  simulator::seed(seed);
  // On the schedule's clock: the reactor ends the pause that it may be in, so that each seed begins alike.
  gpumem::schedule::run(seed, {[] { gpumem::sync::sleep_for(1ms); }});
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < members; ++i) {
    bodies.emplace_back([&, i] { member{streams, seed * members + i, seen}.run(3); });
  }
  return gpumem::schedule::run(seed, std::move(bodies));
}

std::uint64_t number_from(char const* name, std::uint64_t otherwise) {
  auto const* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class reactor_schedule : public testing::Test {
protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) streams.emplace_back(gpumem::device{0});
  }
  std::vector<gpumem::stream> streams;
};

// GPUMEM_SEED=n runs that seed alone, GPUMEM_SEEDS=n so many. A wait that nobody ends is a deadlock, which the schedule
// tells with its seed.
TEST_F(reactor_schedule, tells_everybody_and_nobody_too_early) {
  auto const only = number_from("GPUMEM_SEED", 0);
  auto const first = only ? only : 1, count = only ? 1 : number_from("GPUMEM_SEEDS", 3'000);
  counts seen;
  std::uint64_t switches = 0;
  for (auto seed = first; seed < first + count; ++seed) {
    switches += run_seed(seed, streams, seen).switches;
    ASSERT_EQ(seen.early, 0u) << "GPUMEM_SEED=" << seed;
    ASSERT_NO_THROW(simulator::expect_silent()) << "GPUMEM_SEED=" << seed;
  }
  std::printf("%llu seeds, %llu switches: completed %zu, stopped %zu, destroyed %zu\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(switches), seen.completed,
              seen.stopped, seen.destroyed);
  if (only) return;
  EXPECT_GT(seen.completed, count);
  EXPECT_GT(seen.stopped, count / 100);
  EXPECT_GT(seen.destroyed, count / 10);
}

TEST_F(reactor_schedule, replays_a_seed_exactly) {
  counts ignored;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) run_seed(seed, streams, ignored); // what is made at first use
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    counts one, two;
    auto const once = run_seed(seed, streams, one), again = run_seed(seed, streams, two);
    ASSERT_EQ(once.marks, again.marks) << seed;
    ASSERT_EQ(once.switches, again.switches) << seed;
    ASSERT_EQ(one.completed, two.completed) << seed;
    ASSERT_EQ(one.stopped, two.stopped) << seed;
  }
}

// How often the device is asked while a wait is armed for a millisecond of the schedule's clock, which costs nothing.
std::uint64_t questions_in_a_millisecond(latency urgency) {
  gpumem::stream on{gpumem::device{0}};
  std::uint64_t asked = 0;
  gpumem::schedule::run(1, {[&] {
                          gpumem::event never{gpumem::device{0}};
                          simulator::never_complete(never.get());
                          never.record(on);
                          test::manual_executor executor;
                          auto waits = [&]() -> task<> {
                            co_await completion(never, {.latency = urgency, .resume_on = &executor});
                          };
                          auto const running = test::start(waits());
                          auto const before = gpumem::driver_calls("cuEventQuery");
                          gpumem::sync::sleep_for(1ms);
                          asked = gpumem::driver_calls("cuEventQuery") - before;
                        }});
  return asked;
}

TEST(reactor_pace, is_a_question_in_ten_microseconds_at_most_unless_somebody_hurries) {
  auto const balanced = questions_in_a_millisecond(latency::balanced);
  auto const low = questions_in_a_millisecond(latency::low);
  EXPECT_LE(balanced, 100u);
  EXPECT_GE(balanced, 20u); // never more than fifty microseconds apart
  EXPECT_GE(low, 1'000u);
  std::printf("questions in a millisecond: balanced %llu, low %llu\n", static_cast<unsigned long long>(balanced),
              static_cast<unsigned long long>(low));
}

} // namespace
