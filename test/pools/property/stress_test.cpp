// The same programs on free-running threads, for the sanitizers: under a schedule one thread runs at a time, which
// hides races.
// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

TEST(pool_stress, correct_programs_find_no_fault) {
  gpumem_test::prepare_programs();
  auto const* const asked = std::getenv("GPUMEM_SEEDS");
  auto const programs = asked ? std::strtoull(asked, nullptr, 10) : 60;
  for (std::uint64_t seed = 1; seed <= programs; ++seed) {
    auto const run = [](std::uint64_t, std::vector<std::function<void()>> bodies) {
      std::vector<std::thread> threads;
      for (auto& body : bodies) threads.emplace_back(std::move(body));
      for (auto& thread : threads) thread.join();
    };
    auto const result = gpumem_test::run_program(seed, {.threads = 4, .operations = 200}, run);
    ASSERT_EQ(result.failure, "") << "seed " << seed;
  }
}

} // namespace
