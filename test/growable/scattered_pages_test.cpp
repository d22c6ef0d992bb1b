// Buffers of many thousands of pages, which are discarded and restored in random order.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
import gpumem.growable;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"
#include "growable_fixture.hpp"

namespace {

using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

class scattered_pages : public gpumem_test::growable_fixture {
protected:
  static constexpr std::size_t page = 2 * MiB, count = 4000;
  static auto visits(pool& of) {
    return static_cast<gpumem::detail::pool_state*>(of.services().state)->engine().read_counters().idle_visits;
  }
  // Restores pages of the buffer, each alone.
  testing::AssertionResult restore(buffer& in, std::vector<std::size_t> const& pages) {
    for (auto const each : pages)
      if (!in.try_restore(a, each * page, page)) return testing::AssertionFailure() << "page " << each;
    return testing::AssertionSuccess();
  }
};

// At the pool's limit each restored page is one that the buffer has discarded elsewhere.
TEST_F(scattered_pages, restoring_looks_at_few_of_the_discarded_pages) {
  pool r{device, {.limit = count * page}};
  buffer kv{r, a, {.reserve = 2 * count * page, .initial = 2 * count * page, .discarded = true, .page = page}};
  std::mt19937_64 random{7};
  std::vector<std::size_t> mapped(2 * count);
  std::iota(mapped.begin(), mapped.end(), std::size_t{0});
  std::ranges::shuffle(mapped, random);
  std::vector<std::size_t> const unmapped(mapped.begin() + count, mapped.end());
  mapped.resize(count);
  ASSERT_TRUE(restore(kv, mapped));
  EXPECT_TRUE(is_consistent(r));
  std::ranges::shuffle(mapped, random);
  for (auto const each : mapped) kv.discard(a, each * page, page);
  a.synchronize();
  auto const before = visits(r);
  ASSERT_TRUE(restore(kv, unmapped));
  EXPECT_LE(visits(r) - before, 20 * count);
  EXPECT_EQ(r.statistics().reserved, count * page);
  EXPECT_TRUE(is_consistent(r));
}

} // namespace
