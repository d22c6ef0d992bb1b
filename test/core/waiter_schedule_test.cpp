// Random requests under schedules: tens of thousands of interleavings, each of which can be replayed by its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/services.hpp>

#include <algorithm>
#include <array>
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
#include <string>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/parking_resource.hpp"
#include "../support/scheduled_stop_source.hpp"
#include "../support/idle_default_executor.hpp"
#include "waiter_races.hpp"

namespace {

constexpr std::size_t members = 3;

struct outcome_of_seed {
  test::stress_counts counts;
  gpumem::detail::schedule::result schedule;
  std::size_t used = 0;
  bool idle = false;
};

outcome_of_seed run_workers(std::uint64_t seed, std::vector<gpumem::stream>& streams) {
  outcome_of_seed result;
  test::wait_for_idle_library_thread();
  test::parking_resource resource{512};
  std::array<test::stress_counts, members> counts;
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < members; ++i) {
    bodies.emplace_back([&, i] {
      test::stress_worker<test::scheduled_stop_source> member{resource, streams[i], seed * members + i,
                                                              gpumem::detail::sync::schedule_point};
      member.run(3);
      counts[i] = member.counts();
    });
  }
  result.schedule = gpumem::detail::schedule::run(seed, std::move(bodies));
  for (auto const& one : counts) result.counts += one;
  result.used = resource.state().used();
  result.idle = resource.state().idle();
  return result;
}

class waiter_schedule : public testing::Test {
protected:
  void SetUp() override {
    for (std::size_t i = 0; i < members; ++i) streams.emplace_back(gpumem::device{0});
  }
  std::vector<gpumem::stream> streams;
};

TEST_F(waiter_schedule, many_requests_leave_no_bytes_counted) {
  test::schedule_seeds const seeds{6'000};
  auto const count = seeds.count();
  test::stress_counts sum;
  std::uint64_t switches = 0;
  seeds.each([&](std::uint64_t seed) {
    auto const result = run_workers(seed, streams);
    sum += result.counts;
    switches += result.schedule.switches;
    ASSERT_EQ(result.used, 0u) << "GPUMEM_SEED=" << seed;
    ASSERT_TRUE(result.idle) << "GPUMEM_SEED=" << seed;
  });
  std::printf("%llu seeds, %llu switches: ", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(switches));
  sum.print();
  if (seeds.alone()) return;
  EXPECT_GT(sum.granted, count);
  EXPECT_GT(sum.stopped, count / 100);
  EXPECT_GT(sum.expired, count / 200);
  EXPECT_GT(sum.late, count / 400);
  EXPECT_GT(sum.parked, count / 100);
}

// Makes requests that only their deadline ends. Returns how many ended otherwise.
std::size_t ask_in_vain(test::parking_resource& resource, gpumem::stream_ref stream, std::uint64_t seed) {
  std::minstd_rand random{static_cast<std::uint32_t>(seed * 2 + 1)};
  static auto& here = *new gpumem::inline_executor; // outlives the library thread, which flushes it
  gpumem::thread_executor elsewhere;
  std::array<gpumem::executor*, 3> const places{&here, &elsewhere, nullptr};
  auto ask = [&](gpumem::executor* where) -> gpumem::task<gpumem::outcome> {
    auto const deadline = gpumem::detail::sync::now() + std::chrono::nanoseconds{random() % 4'000};
    try {
      (void)co_await resource.acquire(stream, 16, {.resume_on = where, .deadline = deadline});
    } catch (gpumem::acquire_error const& e) { co_return e.reason(); }
    co_return gpumem::outcome::granted;
  };
  std::size_t wrong = 0;
  for (auto* const where : places) wrong += gpumem::sync_wait(ask(where)) != gpumem::outcome::deadline;
  return wrong;
}

TEST_F(waiter_schedule, deadlines_end_every_request) {
  test::schedule_seeds const seeds{2'000};
  seeds.each([&](std::uint64_t seed) {
    test::wait_for_idle_library_thread();
    test::parking_resource resource{64};
    auto const block = resource.acquire(streams[0], 64).wait();
    std::size_t wrong = 0;
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < members; ++i) {
      bodies.emplace_back([&, i] { wrong += ask_in_vain(resource, streams[i], seed * members + i); });
    }
    gpumem::detail::schedule::run(seed, std::move(bodies));
    ASSERT_EQ(wrong, 0u) << "GPUMEM_SEED=" << seed;
    ASSERT_TRUE(resource.state().idle()) << "GPUMEM_SEED=" << seed;
  });
}

TEST_F(waiter_schedule, equal_seeds_give_equal_runs) {
  run_workers(1, streams); // warm-up: what first uses create
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    auto const once = run_workers(seed, streams), again = run_workers(seed, streams);
    ASSERT_EQ(once.schedule.marks, again.schedule.marks) << seed;
    ASSERT_EQ(once.schedule.switches, again.schedule.switches) << seed;
    ASSERT_EQ(once.counts.granted, again.counts.granted) << seed;
    ASSERT_EQ(once.counts.parked, again.counts.parked) << seed;
  }
}

} // namespace
