// The adviser's rule, over figures that the tests make up.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

import gpumem;
import replay;
import advise;

namespace {

using advise::figures;
using advise::verdict;

advise::candidate made(char const* resource, figures counted) {
  return {.resource = resource, .title = resource, .counted = counted};
}
figures complete(std::uint64_t reserved, std::uint64_t memory_calls) {
  return {.completed = true, .reserved = reserved, .memory_calls = memory_calls};
}

TEST(choice, takes_the_simplest_within_both_bounds) {
  std::vector<advise::candidate> const all{made("a", complete(1'021, 100)), made("b", complete(1'020, 201)),
                                           made("c", complete(1'020, 200)), made("d", complete(1'000, 100))};
  auto const chosen = advise::choose(all, 0, 0);
  ASSERT_TRUE(chosen.place);
  EXPECT_EQ(*chosen.place, 2U);
  EXPECT_EQ(chosen.verdicts,
            (std::vector{verdict::much_memory, verdict::many_calls, verdict::chosen, verdict::less_simple}));
  EXPECT_EQ(chosen.fewest_calls, 100U);
  EXPECT_EQ(chosen.least, 1'000U);
}

TEST(choice, compares_memory_only_with_those_that_make_few_calls) {
  std::vector<advise::candidate> const all{made("a", complete(500, 120)), made("b", complete(1'000, 10))};
  EXPECT_EQ(advise::choose(all, 0, 0).place, 1U);
  EXPECT_EQ(advise::choose(all, 240, 0).place, 0U); // one memory call for two calls of the program is few
  EXPECT_EQ(advise::choose(all, 238, 0).place, 1U);
  EXPECT_EQ(advise::choose(std::vector{made("a", complete(500, 100)), all[1]}, 0, 0).place, 0U); // and so are 100
}

TEST(choice, leaves_out_what_fails_and_what_does_not_fit) {
  figures const failed{.completed = false, .reserved = 1, .memory_calls = 1};
  std::vector<advise::candidate> const all{made("a", failed), made("b", complete(1'000, 10)),
                                           made("c", complete(999, 10))};
  EXPECT_EQ(advise::choose(all, 0, 0).place, 1U);
  auto const bounded = advise::choose(all, 0, 999);
  EXPECT_EQ(bounded.place, 2U);
  EXPECT_EQ(bounded.verdicts, (std::vector{verdict::incomplete, verdict::too_large, verdict::chosen}));
  EXPECT_FALSE(advise::choose(all, 0, 998).place);
}

// The plan has one allocation and lasts a second; a moved page takes 40 us, and the default effort is .05.
TEST(choice, takes_the_moves_of_effort_1_for_the_default_if_the_time_pays_for_them) {
  replay::plan plan;
  plan.operations = {{1, 0, 0, 1}, {1, 0, 0, 0}};
  plan.blocks = 1;
  plan.peak_live_bytes = 1;
  plan.microseconds = {0, 1'000'000};
  auto all = advise::candidates_for(plan, 0);
  auto const of = [&](std::string const& resource) -> figures& {
    for (auto& each : all) {
      if (each.resource == resource) return each.counted;
    }
    throw std::runtime_error(resource);
  };
  of("pool_effort_0") = complete(2'000, 5);
  of("pool_effort_1") = complete(1'000, 50);
  of("pool_effort_1").moved = 1'250;
  advise::fill_default_pool(all, plan);
  EXPECT_EQ(of("pool").reserved, 1'000U);
  of("pool_effort_1").moved = 1'251;
  advise::fill_default_pool(all, plan);
  EXPECT_EQ(of("pool").reserved, 2'000U);
}

TEST(choice, offers_blocks_of_one_size_where_they_waste_at_most_half) {
  replay::plan plan;
  plan.operations = {{100, 0, 0, 1}, {300, 1, 0, 1}};
  plan.blocks = 2;
  plan.peak_live_bytes = 300;
  auto const offers = [&] {
    for (auto const& each : advise::candidates_for(plan, 0)) {
      if (each.resource == "fixed") return true;
    }
    return false;
  };
  EXPECT_TRUE(offers());
  plan.peak_live_bytes = 299;
  EXPECT_FALSE(offers());
}

// Returns the text of statements that compile.
#define COMPILED(...) (static_cast<void>([] { __VA_ARGS__ }), #__VA_ARGS__)

TEST(choice, its_lines_of_cpp_compile) {
  replay::plan plan;
  plan.operations = {{1048576, 0, 0, 1}};
  plan.blocks = 1;
  plan.peak_live_bytes = 1048576;
  // clang-format off
  std::vector<std::string> const lines{
      COMPILED(gpumem::cuda_resource memory{gpumem::device{0}};),
      COMPILED(gpumem::async_resource memory{gpumem::device{0}};),
      COMPILED(gpumem::fixed_size_resource memory{gpumem::cuda_resource{gpumem::device{0}}, {.block_size = 1048576, .blocks_per_chunk = 1}};),
      COMPILED(gpumem::pool_resource memory{gpumem::device{0}};),
      COMPILED(gpumem::pool_resource memory{gpumem::device{0}, {.effort = 1}};),
      COMPILED(gpumem::pool_resource memory{gpumem::device{0}, {.effort = 0}};),
      COMPILED(gpumem::pool_resource memory{gpumem::device{0}, {.pages = false}};),
      COMPILED(gpumem::binning_resource memory{gpumem::pool_resource{gpumem::device{0}, {.effort = 1}}, {.min_exponent = 18, .max_exponent = 22}};),
      COMPILED(gpumem::arena_resource memory{gpumem::cuda_resource{gpumem::device{0}}};),
      COMPILED(gpumem::pool_resource memory{gpumem::device{0}, {.limit = 2097152}};)};
  // clang-format on
  std::vector<std::string> offered;
  for (auto const& each : advise::candidates_for(plan, 2097152)) offered.push_back(each.cpp);
  EXPECT_EQ(offered, lines);
}

TEST(choice, counts_the_bytes_of_the_driver_as_it_rounds_them) {
  replay::plan plan;
  std::uint64_t const mib = std::uint64_t{1} << 20;
  plan.operations = {{1, 0, 0, 1}, {3 * mib, 1, 0, 1}, {3 * mib, 1, 0, 0}, {mib, 1, 0, 1}};
  auto const scaled = advise::scaled_driver(plan, {.completed = true, .driver_calls = 20}, 2);
  EXPECT_EQ(scaled.reserved, 4 * mib + 512);
  EXPECT_EQ(scaled.memory_calls, 4U);
  EXPECT_EQ(scaled.driver_calls, 40U);
}

} // namespace
