// Waiting for the device under schedules: the poller, the library thread and the waiters take part, seed by seed.
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
using gpumem::task;
namespace simulator = gpumem::simulator;

constexpr std::size_t members = 3;

struct counts {
  std::size_t completed = 0, stopped = 0, destroyed = 0, wrong = 0;
};

// One thread's waits on its stream: awaited, stopped, destroyed, blocking; its work must be done when it is told so.
class member {
public:
  member(gpumem::stream& stream, std::uint64_t seed, counts& seen)
      : stream_{stream}, random_{static_cast<std::uint32_t>(seed * 2 + 1)}, seen_{seen} {}

  void run(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      bool worked = false;
      simulator::work(stream_, {}, 1us, [&] { worked = true; });
      switch (random_() / 7 % 4) {
      case 0: gpumem::sync_wait(completion(stream_)); break;
      case 1: gpumem::sync_wait(stopped_or_not()); break;
      case 2: destroyed(); break;
      default: completion(stream_).wait(); break;
      }
      if (told_complete_ && !worked) ++seen_.wrong;
      stream_.synchronize(); // `worked` is a local
      told_complete_ = true;
    }
  }

private:
  task<> stopped_or_not() {
    test::scheduled_stop_source source;
    auto waits = [&]() -> task<bool> {
      try {
        co_await completion(stream_, {}, source.get_token());
        co_return true;
      } catch (gpumem::acquire_error const&) { co_return false; }
    };
    auto stops = [&]() -> task<> {
      co_await test::hop{gpumem::library_executor()};
      source.request_stop();
    };
    auto [complete, nothing] = co_await gpumem::when_all(waits(), stops());
    ++(complete ? seen_.completed : seen_.stopped);
    told_complete_ = complete;
  }
  void destroyed() {
    auto waits = [&]() -> task<> { co_await completion(stream_, {.resume_on = &executor_}); };
    auto const running = test::start(waits());
    for (auto marks = random_() / 7 % 6; marks > 0; --marks) gpumem::sync::mark();
    ++seen_.destroyed;
    told_complete_ = running.done();
  }

  gpumem::stream& stream_;
  std::minstd_rand random_;
  counts& seen_;
  test::manual_executor executor_;
  bool told_complete_ = true;
};

gpumem::schedule::result run_seed(std::uint64_t seed, std::vector<gpumem::stream>& streams, counts& seen) {
  simulator::seed(seed);
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < members; ++i) {
    bodies.emplace_back([&, i] { member{streams[i], seed * members + i, seen}.run(3); });
  }
  return gpumem::schedule::run(seed, std::move(bodies));
}

std::uint64_t number_from(char const* name, std::uint64_t otherwise) {
  auto const* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// GPUMEM_SEED=n runs that seed alone, GPUMEM_SEEDS=n so many.
TEST(completion_schedule, never_tells_of_completion_too_early_or_not_at_all) {
  std::vector<gpumem::stream> streams;
  for (std::size_t i = 0; i < members; ++i) streams.emplace_back(gpumem::device{0});
  auto const only = number_from("GPUMEM_SEED", 0);
  auto const first = only ? only : 1, count = only ? 1 : number_from("GPUMEM_SEEDS", 3'000);
  counts seen;
  std::uint64_t switches = 0;
  for (auto seed = first; seed < first + count; ++seed) {
    switches += run_seed(seed, streams, seen).switches;
    ASSERT_EQ(seen.wrong, 0u) << "GPUMEM_SEED=" << seed;
    ASSERT_NO_THROW(simulator::expect_silent()) << "GPUMEM_SEED=" << seed;
  }
  std::printf("%llu seeds, %llu switches: completed %zu, stopped %zu, destroyed %zu\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(switches), seen.completed,
              seen.stopped, seen.destroyed);
  if (only) return;
  EXPECT_GT(seen.completed, 0u);
  EXPECT_GT(seen.stopped, 0u);
  EXPECT_GT(seen.destroyed, 0u);
}

} // namespace
