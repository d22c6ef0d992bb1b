// The property test of the pool: correct programs under schedules that depend on a seed, checked by the simulated
// device. `--seed N` or GPUMEM_SEED replays one seed; `--seeds N` or GPUMEM_SEEDS sets the number of seeds.
// SPDX-License-Identifier: Apache-2.0
#include "forked_runs.hpp"

#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

import gpumem;

namespace {

using gpumem_test::program_result;

std::optional<std::uint64_t> only_seed;
#if __has_feature(address_sanitizer)
std::uint64_t seeds = 1'000; // each takes several times as long with the sanitizer
#else
std::uint64_t seeds = 2'000; // no planted fault of mutants.txt needs more
#endif

// The seed also chooses how rarely threads switch.
constexpr unsigned rarities[] = {1, 6, 20, 60, 150};

program_result run_scheduled(std::uint64_t seed) {
  auto const run = [](std::uint64_t number, std::vector<std::function<void()>> bodies) {
    gpumem::simulator::set_schedule_hooks(nullptr, [](void*) { return gpumem::detail::schedule::blocked(); }, nullptr);
    gpumem::detail::schedule::run(number, std::move(bodies), rarities[number % std::size(rarities)]);
  };
  // Pages move only while one shard is active.
  bool const alone = seed % 4 == 0;
  return gpumem_test::run_program(seed, {.threads = alone ? 1 : 3, .operations = alone ? 330 : 110}, run);
}

program_result run_once(std::uint64_t seed) {
  gpumem_test::forked_runs one{run_scheduled};
  one.start(seed);
  return one.finish_first();
}

std::string named(std::uint64_t seed, std::string const& text) {
  return "seed " + std::to_string(seed) + " (replay with --seed " + std::to_string(seed) + "): " + text;
}

void expect_same_again(std::uint64_t seed) {
  auto const first = run_once(seed), second = run_once(seed);
  EXPECT_EQ(first.trace, second.trace) << named(seed, "two runs differ");
  EXPECT_EQ(first.failure.empty(), second.failure.empty()) << named(seed, "two runs differ");
}

TEST(pool_property, correct_programs_find_no_fault) {
  if (only_seed) {
    auto const result = run_once(*only_seed);
    EXPECT_EQ(result.failure, "") << named(*only_seed, result.failure);
    return expect_same_again(*only_seed);
  }
  program_result sum;
  gpumem_test::forked_runs programs{run_scheduled};
  std::uint64_t next = 1;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    while (next <= seeds && programs.running() < programs.at_once()) programs.start(next++);
    auto const result = programs.finish_first();
    ASSERT_EQ(result.failure, "") << named(seed, result.failure);
    sum.operations += result.operations;
    sum.frees += result.frees;
    sum.frees_elsewhere += result.frees_elsewhere;
    for (auto const& [what, times] : result.counts) sum.counts[what] += times;
    if (seed % 500 == 0) EXPECT_EQ(run_once(seed).trace, result.trace) << named(seed, "two runs differ");
  }
  std::printf("%llu programs, %llu operations, %llu frees, %.0f %% of them on another stream\n",
              static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(sum.operations),
              static_cast<unsigned long long>(sum.frees),
              100.0 * static_cast<double>(sum.frees_elsewhere) / static_cast<double>(sum.frees));
  for (auto const& [what, times] : sum.counts) {
    std::printf("  %-28s %llu\n", what.c_str(), static_cast<unsigned long long>(times));
    if (seeds >= 2'000) EXPECT_GT(times, 0u) << what << " was never taken";
  }
  EXPECT_GE(sum.frees_elsewhere * 100, sum.frees * 30) << "too few frees on another stream";
}

} // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto const number = [](char const* text) { return std::strtoull(text, nullptr, 10); };
  if (auto const* seed = std::getenv("GPUMEM_SEED")) only_seed = number(seed);
  if (auto const* count = std::getenv("GPUMEM_SEEDS")) seeds = number(count);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view{argv[i]} == "--seed") only_seed = number(argv[i + 1]);
    if (std::string_view{argv[i]} == "--seeds") seeds = number(argv[i + 1]);
  }
  gpumem_test::prepare_programs();
  return RUN_ALL_TESTS();
}
