// Random requests for a pool's memory under schedules, with a device that lags behind. Each run can be replayed by its
// seed.
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

namespace {

namespace simulator = gpumem::simulator;
using gpumem::outcome;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

constexpr std::size_t members = 3, unit = 256, limit = 64 * unit;

// Enqueues device work on each granted block, so that the checker finds wrong reuse.
void use(gpumem::allocation const& block) {
  if (block.bytes() > 0) simulator::work(block.stream(), {simulator::write(block.data(), block.bytes())});
}

pool make_pool(std::uint64_t seed) {
  auto const how =
      std::array{gpumem::reuse_policy::wait, gpumem::reuse_policy::completed, gpumem::reuse_policy::ordered}[seed % 3];
  auto const overtakes = std::array{0u, 1u, 16u}[seed / 3 % 3];
  return pool{gpumem::device{0},
              {.limit = seed % 2 ? limit : limit / 2, .pages = false, .cross_stream = how, .max_overtakes = overtakes}};
}

// Returns what is wrong after all requests have ended; empty if nothing is.
std::string wrong_in(pool& one) {
  auto const left = one.statistics();
  std::string wrong;
  if (left.live != 0 || left.allocated != 0) wrong += "memory was lost; ";
  auto& engine = static_cast<gpumem::detail::pool_state*>(one.services().state)->engine();
  if (!engine.is_consistent()) wrong += "inconsistent; ";
  if (engine.has_waiting()) wrong += "a request still waits; ";
  for (auto const& each : simulator::take_findings()) wrong += each.text + "; ";
  return wrong;
}

struct result_of_seed {
  test::stress_counts counts;
  std::string wrong;
};

result_of_seed run_workers(std::uint64_t seed, std::vector<gpumem::stream>& streams) {
  simulator::seed(seed);
  result_of_seed result;
  auto shared = make_pool(seed);
  std::array<test::stress_counts, members> counts;
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < members; ++i) {
    bodies.emplace_back([&, i] {
      test::stress_worker<test::scheduled_stop_source, pool> member{
          shared, streams[i], seed * members + i, gpumem::detail::sync::schedule_point, unit, use};
      member.run(3);
      counts[i] = member.counts();
    });
  }
  gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
  for (auto const& one : counts) result.counts += one;
  result.wrong = wrong_in(shared);
  return result;
}

// Two threads that wait for each other's memory, or for a third request's, until the pool closes.
std::string run_until_closed(std::uint64_t seed, std::vector<gpumem::stream>& streams) {
  simulator::seed(seed);
  auto shared = make_pool(seed);
  auto const limit_now = shared.options().limit;
  auto third = shared.acquire(streams[2], seed % 2 ? limit_now / 2 : 0).wait();
  std::string wrong;
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < 2; ++i) {
    bodies.emplace_back([&, i] {
      auto ended = outcome::granted;
      while (ended == outcome::granted) {
        auto const soon = gpumem::detail::sync::now() + std::chrono::hours{1};
        auto const got = shared.acquire(streams[i], limit_now / 4 * 3).wait_until(soon);
        ended = got ? outcome::granted : got.error().reason;
        if (got) use(*got);
      }
      if (ended != outcome::closed) wrong += "a request did not end with its pool; ";
      if (shared.acquire(streams[i], unit).try_now()) wrong += "a closed pool gave memory; ";
    });
  }
  bodies.emplace_back([&] {
    for (auto i = seed % 50; i > 0; --i) gpumem::detail::sync::schedule_point();
    shared.close();
  });
  gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
  third.reset();
  return wrong + wrong_in(shared);
}

class pool_waiting_schedule : public testing::Test {
protected:
  void SetUp() override {
    for (std::size_t i = 0; i < members; ++i) streams.emplace_back(gpumem::device{0});
  }
  std::vector<gpumem::stream> streams;
};

TEST_F(pool_waiting_schedule, random_requests_leave_no_bytes_live) {
  test::schedule_seeds const seeds{500, 5};
  auto const count = seeds.count();
  test::stress_counts sum;
  seeds.each([&](std::uint64_t seed) {
    auto const result = run_workers(seed, streams);
    sum += result.counts;
    ASSERT_EQ(result.wrong, "") << "GPUMEM_SEED=" << seed;
  });
  std::printf("%llu seeds: ", static_cast<unsigned long long>(count));
  sum.print();
  if (seeds.alone()) return;
  EXPECT_GT(sum.granted, count);
  EXPECT_GT(sum.stopped, count / 100);
  EXPECT_GT(sum.late, count / 200);
  EXPECT_GT(sum.parked, count / 100);
}

TEST_F(pool_waiting_schedule, waiting_threads_end_when_the_pool_closes) {
  test::schedule_seeds const seeds{300, 5};
  seeds.each([&](std::uint64_t seed) {
    auto const wrong = run_until_closed(seed, streams);
    ASSERT_EQ(wrong, "") << "GPUMEM_SEED=" << seed;
  });
}

} // namespace
