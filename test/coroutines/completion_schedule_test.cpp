// Waiting for the device under schedules, seed by seed, with the reactor, the library thread and the waiters.
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

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/scheduled_stop_source.hpp"
#include "device_waits.hpp"

namespace {

namespace simulator = gpumem::simulator;

constexpr std::size_t members = 3;

// The waits of one thread on its own stream: awaited, stopped, destroyed, blocking.
void wait_in_turn(gpumem::stream& stream, std::uint64_t seed, test::wait_counts& seen) {
  test::device_waits waits{seed, seen};
  for (int i = 0; i < 3; ++i) {
    waits.give_work(stream);
    switch (waits.pick(4)) {
    case 0: gpumem::sync_wait(waits.awaited(stream)); break;
    case 1: gpumem::sync_wait(waits.stopped_or_not(stream)); break;
    case 2: waits.destroyed(stream); break;
    default:
      gpumem::completion(stream).wait();
      waits.told_complete();
      break;
    }
    stream.synchronize();
  }
}

gpumem::detail::schedule::result run_seed(std::uint64_t seed, std::vector<gpumem::stream>& streams,
                                          test::wait_counts& seen) {
  simulator::seed(seed);
  test::let_reactors_forget(seed);
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < members; ++i) {
    bodies.emplace_back([&, i] { wait_in_turn(streams[i], seed * members + i, seen); });
  }
  return gpumem::detail::schedule::run(seed, std::move(bodies));
}

TEST(completion_schedule, every_wait_ends_and_none_before_completion) {
  std::vector<gpumem::stream> streams;
  for (std::size_t i = 0; i < members; ++i) streams.emplace_back(gpumem::device{0});
  test::schedule_seeds const seeds{1'000};
  test::wait_counts seen;
  std::uint64_t switches = 0;
  seeds.each([&](std::uint64_t seed) {
    switches += run_seed(seed, streams, seen).switches;
    ASSERT_EQ(seen.early, 0u) << "GPUMEM_SEED=" << seed;
    ASSERT_NO_THROW(simulator::expect_silent()) << "GPUMEM_SEED=" << seed;
  });
  std::printf("%llu seeds, %llu switches: completed %zu, stopped %zu, destroyed %zu\n",
              static_cast<unsigned long long>(seeds.count()), static_cast<unsigned long long>(switches), seen.completed,
              seen.stopped, seen.destroyed);
  EXPECT_EQ(seen.failed, 0u);
  if (seeds.alone()) return;
  EXPECT_GT(seen.completed, 0u);
  EXPECT_GT(seen.stopped, 0u);
  EXPECT_GT(seen.destroyed, 0u);
}

} // namespace
