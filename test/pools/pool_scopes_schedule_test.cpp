// Many scopes under schedules, with a device that lags behind: their work waits, is preempted, waits elsewhere, is
// stopped, late or destroyed. Each run can be replayed by its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"
#include "property/random_source.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/scheduled_stop_source.hpp"
#include "../support/idle_default_executor.hpp"
#include "scope_book.hpp"
#include "scope_workers.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem_test::scope_book;
using gpumem_test::scope_form;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
using member = gpumem_test::scope_member<pool>;

constexpr std::size_t members = 4, unit = 256, limit = 24 * unit, weights = 4 * unit;

struct result_of_seed {
  scope_book::tally told;
  gpumem::detail::schedule::result schedule;
  std::string wrong;
};

gpumem::reuse_policy how_of(std::uint64_t seed) {
  return std::array{gpumem::reuse_policy::wait, gpumem::reuse_policy::completed,
                    gpumem::reuse_policy::ordered}[seed / 4 % 3];
}

// With reuse_policy::ordered a stream gets memory that other streams freed only when whole chunks are free. Weights
// would prevent that, since they hold memory all the time.
scope_form form_of(std::uint64_t seed) {
  return {.weights = seed % 4 == 1 && how_of(seed) != gpumem::reuse_policy::ordered,
          .marks = seed % 4 == 2,
          .apart = how_of(seed) == gpumem::reuse_policy::ordered,
          .closes = seed % 4 == 3,
          .max_overtakes = std::array{0u, 1u, 2u, 16u}[seed / 12 % 4]};
}

std::string wrong_in(pool& one) {
  auto const left = one.statistics();
  std::string wrong;
  if (left.live != 0 || left.allocated != 0) wrong += "memory was lost; ";
  if (left.waiting != 0) wrong += "counted as waiting; ";
  if (left.peak_reserved > limit) wrong += "more than the limit; ";
  auto& engine = static_cast<gpumem::detail::pool_state*>(one.services().state)->engine();
  if (!engine.is_consistent()) wrong += "inconsistent; ";
  if (engine.has_waiting()) wrong += "a request still waits; ";
  for (auto const& each : simulator::take_findings()) wrong += each.text + "; ";
  return wrong;
}

result_of_seed run_workers(std::uint64_t seed, bool shows = false) {
  simulator::run_until_idle();
  test::wait_for_idle_library_thread();
  simulator::seed(seed);
  auto const form = form_of(seed);
  result_of_seed result;
  std::vector<gpumem::stream> streams;
  for (std::size_t i = 0; i < 3; ++i) streams.emplace_back(gpumem::device{0});
  pool shared{gpumem::device{0},
              {.initial_size = limit,
               .limit = limit,
               .pages = false,
               .cross_stream = how_of(seed),
               .max_overtakes = form.max_overtakes}};
  scope_book book{form, members, shows};
  {
    gpumem::scope kept{shared, "weights"};
    auto const held = form.weights ? shared.acquire(streams[0], weights).wait() : gpumem::allocation{};
    auto const marked = form.marks ? kept.acquire(streams[0], weights).wait() : gpumem::allocation{};
    auto const mark = kept.waiting_elsewhere();
    std::vector<std::unique_ptr<member>> workers;
    for (std::size_t i = 0; i < members; ++i) {
      workers.push_back(
          std::make_unique<member>(shared, unit, (limit - weights) / unit / 2, streams, form, book, workers, seed));
    }
    std::vector<std::function<void()>> bodies;
    for (auto& each : workers) bodies.emplace_back([&] { each->run(5); });
    result.schedule = gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
  }
  result.told = book.told();
  result.wrong = book.wrong().empty() ? wrong_in(shared) : book.wrong();
  return result;
}

TEST(pool_scopes_schedule, random_scopes_end_every_request_once_and_free_all) {
  test::schedule_seeds const seeds{1'500, 5};
  scope_book::tally sum;
  seeds.each([&](std::uint64_t seed) {
    auto const result = run_workers(seed, seeds.alone());
    for (auto const& [what, times] : result.told) sum[what] += times;
    ASSERT_EQ(result.wrong, "") << "GPUMEM_SEED=" << seed;
  });
  for (auto const& [what, times] : sum) {
    std::printf("%10llu %s\n", static_cast<unsigned long long>(times), what.c_str());
    if (!seeds.alone() && !testing::Test::HasFatalFailure()) EXPECT_GT(times, seeds.count() / 100) << what;
  }
}

} // namespace
