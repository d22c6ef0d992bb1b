// Work that waits beside a cache that needs more memory to spill, under schedules: all work is served and the limit
// holds. GPUMEM_SEEDS=n replays run n after the runs before it.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"
#include "property/random_source.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

import gpumem;
#include "../support/idle_default_executor.hpp"
#include "spiller_workers.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem_test::spiller_notes;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

constexpr std::size_t members = 3, unit = 256, limit = 24 * unit, most = 12;

void look_at_rest(pool& one, spiller_notes& notes) {
  auto const left = one.statistics();
  if (left.live != 0 || left.allocated != 0) notes.wrong("memory was lost");
  if (left.waiting != 0) notes.wrong("counted as waiting");
  if (left.peak_live > limit || left.peak_reserved > limit) notes.wrong("more than the limit");
  auto& engine = static_cast<gpumem::detail::pool_state*>(one.services().state)->engine();
  if (!engine.is_consistent()) notes.wrong("inconsistent");
  if (engine.has_waiting()) notes.wrong("a request still waits");
  for (auto const& each : simulator::take_findings()) notes.wrong(each.text);
}

spiller_notes run_workers(std::uint64_t seed, bool shows) {
  simulator::run_until_idle();
  test::wait_for_idle_library_thread();
  simulator::seed(seed);
  spiller_notes notes{shows};
  std::vector<gpumem::stream> streams;
  for (std::size_t i = 0; i < members; ++i) streams.emplace_back(gpumem::device{0});
  pool shared{gpumem::device{0},
              {.initial_size = limit,
               .limit = limit,
               .pages = false,
               .cross_stream = seed % 2 ? gpumem::reuse_policy::wait : gpumem::reuse_policy::completed,
               .max_overtakes = std::array{0u, 1u, 16u}[seed / 2 % 3]}};
  {
    gpumem_test::spilled_cache<pool> cache{shared, 2 * unit, limit, seed, notes};
    for (auto i = seed % 12; i > 0; --i) cache.add(streams[i % members]);
    auto const spiller =
        shared.on_pressure(gpumem::default_executor(), [&](auto wanted) { return cache.spill(wanted); });
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < members; ++i) {
      bodies.emplace_back([&, i] {
        gpumem_test::spiller_member<pool>{shared, cache, streams[i], unit, most, seed * members + i, notes}.run(3);
      });
    }
    gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
  }
  look_at_rest(shared, notes);
  return notes;
}

TEST(pool_spiller_schedule, spilling_with_extra_memory_serves_all_work_below_the_limit) {
  test::schedule_seeds const seeds{1'200, 5};
  std::map<std::string, std::uint64_t> sum;
  seeds.each([&](std::uint64_t seed) {
    auto const notes = run_workers(seed, seeds.alone());
    for (auto const& [what, times] : notes.told()) sum[what] += times;
    ASSERT_EQ(notes.wrong(), "") << "GPUMEM_SEED=" << seed;
  });
  for (auto const& [what, times] : sum)
    std::printf("%10llu %s\n", static_cast<unsigned long long>(times), what.c_str());
  if (seeds.alone() || testing::Test::HasFatalFailure()) return;
  for (auto const* what : {"ends", "gives way", "is late", "asks to spill", "spills by way of another block",
                           "spills without one", "raises the peak", "lies", "throws"}) {
    EXPECT_GT(sum[what], seeds.count() / 100) << what;
  }
}

} // namespace
