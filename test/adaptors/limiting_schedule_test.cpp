// Many requests that wait for limiting_adaptors under schedules. Each run can be replayed by its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

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
#include "../core/waiter_races.hpp"
#include "limiting_stress.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::outcome;

constexpr std::size_t members = 3, unit = 256, limit = 64 * unit;

// The largest random requests are for 32 units.
test::limited_stacks stacks_of(std::uint64_t seed) {
  return {.limit = seed % 2 ? limit : limit / 2,
          .least = seed / 2 % 2 ? limit / 2 : limit / 2 + 7 * unit,
          .max_overtakes = std::array{0u, 1u, 16u}[seed / 4 % 3]};
}

struct result_of_seed {
  test::stress_counts counts;
  std::string wrong;
};

template <class Subject>
result_of_seed run_workers(std::uint64_t seed, std::vector<gpumem::stream>& streams, Subject const& shared,
                           test::limited_stacks const& stacks) {
  simulator::seed(seed);
  result_of_seed result;
  std::array<test::stress_counts, members> counts;
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < members; ++i) {
    bodies.emplace_back([&, i] {
      test::stress_worker<test::scheduled_stop_source, Subject> member{shared, streams[i], seed * members + i,
                                                                       gpumem::detail::sync::schedule_point, unit};
      member.run(3);
      counts[i] = member.counts();
    });
  }
  gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
  for (auto const& one : counts) result.counts += one;
  result.wrong = stacks.wrong_in(shared);
  return result;
}

// Two threads that wait for each other's memory, or for a third request's, while the limit changes, until the adaptor
// closes.
template <class Subject>
std::string run_until_closed(std::uint64_t seed, std::vector<gpumem::stream>& streams, Subject shared,
                             test::limited_stacks const& stacks) {
  simulator::seed(seed);
  auto const limit_now = shared.limit();
  auto third = shared.acquire(streams[2], seed % 2 ? limit_now / 2 : 0).wait();
  std::string wrong;
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < 2; ++i) {
    bodies.emplace_back([&, i] {
      auto ended = outcome::granted;
      while (ended == outcome::granted || ended == outcome::too_large) {
        auto const soon = gpumem::detail::sync::now() + std::chrono::hours{1};
        auto const got = shared.acquire(streams[i], limit_now / 4 * 3).wait_until(soon);
        ended = got ? outcome::granted : got.error().reason;
      }
      if (ended != outcome::closed) wrong += "a request did not end with its adaptor; ";
      if (shared.acquire(streams[i], unit).try_now()) wrong += "a closed adaptor gave memory; ";
    });
  }
  bodies.emplace_back([&] {
    for (std::uint64_t change = 0; change < seed % 4; ++change) {
      for (auto i = seed % 30; i > 0; --i) gpumem::detail::sync::schedule_point();
      shared.set_limit(change % 2 ? limit_now : limit_now / 4 * (2 + seed / 4 % 2));
    }
    for (auto i = seed % 50; i > 0; --i) gpumem::detail::sync::schedule_point();
    shared.close();
  });
  gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
  third.reset();
  return wrong + stacks.wrong_in(shared);
}

class limiting_schedule : public testing::Test {
protected:
  void SetUp() override {
    for (std::size_t i = 0; i < members; ++i) streams.emplace_back(gpumem::device{0});
  }
  // `make` returns a stack of adaptors.
  template <class Make> void expect_nothing_lost(std::uint64_t most, Make make) {
    test::schedule_seeds const seeds{most, 5};
    auto const count = seeds.count();
    test::stress_counts sum;
    seeds.each([&](std::uint64_t seed) {
      auto stacks = stacks_of(seed);
      auto const result = run_workers(seed, streams, make(stacks), stacks);
      sum += result.counts;
      ASSERT_EQ(result.wrong, "") << "GPUMEM_SEED=" << seed;
    });
    std::printf("%llu seeds: ", static_cast<unsigned long long>(count));
    sum.print();
    if (seeds.alone()) return;
    EXPECT_GT(sum.granted, count);
    EXPECT_GT(sum.stopped, count / 100);
    EXPECT_GT(sum.expired, count / 200);
    EXPECT_GT(sum.parked, count / 100);
  }
  template <class Make> void expect_ends_closed(std::uint64_t most, Make make) {
    test::schedule_seeds const seeds{most, 5};
    seeds.each([&](std::uint64_t seed) {
      auto stacks = stacks_of(seed);
      auto const wrong = run_until_closed(seed, streams, make(stacks), stacks);
      ASSERT_EQ(wrong, "") << "GPUMEM_SEED=" << seed;
    });
  }
  std::vector<gpumem::stream> streams;
};

TEST_F(limiting_schedule, random_requests_over_a_source_leave_no_bytes_counted) {
  expect_nothing_lost(1'500, [](auto& stacks) { return stacks.over_source(); });
}
TEST_F(limiting_schedule, random_requests_over_a_small_source_leave_no_bytes_counted) {
  expect_nothing_lost(1'500, [](auto& stacks) { return stacks.over_scarce_source(); });
}
TEST_F(limiting_schedule, random_requests_over_a_pool_leave_no_bytes_counted) {
  expect_nothing_lost(1'000, [](auto& stacks) { return stacks.over_pool(); });
}
TEST_F(limiting_schedule, random_requests_over_a_second_limit_leave_no_bytes_counted) {
  expect_nothing_lost(1'000, [](auto& stacks) { return stacks.over_limit_over_pool(); });
}
TEST_F(limiting_schedule, waiting_threads_end_when_the_adaptor_closes) {
  expect_ends_closed(1'000, [](auto& stacks) { return stacks.over_source(); });
}

} // namespace
