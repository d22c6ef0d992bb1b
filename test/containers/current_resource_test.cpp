// The current resource of each device, which is used if none is named.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <concepts>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::any_pool;
using gpumem::cuda_resource;
using gpumem::current_resource;
using gpumem::reset_current_resource;
using gpumem::set_current_resource;

static_assert(!std::movable<gpumem::scoped_current_resource>);

class current_resource_test : public simulated {
protected:
  void TearDown() override {
    reset_current_resource(first);
    reset_current_resource(second);
    simulated::TearDown();
  }
  any_pool pool() { return any_pool{gpumem::pool_resource{cuda_resource{first}}}; }
  gpumem::device first{0}, second{1};
};

TEST_F(current_resource_test, initial_resource_is_a_pool_over_the_device) {
  auto at_first = current_resource(first);
  EXPECT_TRUE(at_first == current_resource(first));
  EXPECT_EQ(gpumem::extend::services_of(at_first).table->device(gpumem::extend::services_of(at_first).state), 0);
  gpumem::stream const a{first};
  auto const bytes = device_bytes();
  gpumem::simulator::clear_driver_calls();
  auto* const p = at_first.allocate(a, 1000, 256);
  EXPECT_GT(gpumem::statistics_of(at_first)->reserved, 1000u); // a pool reserves more than is requested
  EXPECT_EQ(gpumem::simulator::report().driver_calls["cuMemCreate"], 1u) << "it uses virtual pages";
  EXPECT_GT(device_bytes(), bytes);
  at_first.deallocate(a, p, 1000, 256);
}

TEST_F(current_resource_test, each_device_has_its_own_resource) {
  EXPECT_FALSE(current_resource(first) == current_resource(second));
  auto const mine = pool();
  set_current_resource(first, mine);
  EXPECT_TRUE(current_resource(first) == mine);
  EXPECT_FALSE(current_resource(second) == mine);
}

TEST_F(current_resource_test, current_device_is_the_default) {
  auto const of_second = current_resource(second);
  EXPECT_TRUE(current_resource() == current_resource(first));
  gpumem::device_guard const scope{second};
  EXPECT_TRUE(current_resource() == of_second);
  any_pool const mine{gpumem::pool_resource{cuda_resource{second}}};
  EXPECT_TRUE(set_current_resource(mine) == of_second);
  EXPECT_TRUE(current_resource(second) == mine);
  EXPECT_TRUE(reset_current_resource() == mine);
  EXPECT_TRUE(current_resource(second) == of_second);
}

TEST_F(current_resource_test, set_returns_the_previous_and_reset_restores_the_initial) {
  auto const at_first = current_resource(first);
  auto const one = pool(), two = pool();
  EXPECT_TRUE(set_current_resource(first, one) == at_first);
  EXPECT_TRUE(set_current_resource(first, two) == one);
  EXPECT_TRUE(reset_current_resource(first) == two);
  EXPECT_TRUE(reset_current_resource(first) == at_first);
}

TEST_F(current_resource_test, set_resource_is_kept_alive) {
  set_current_resource(first, pool());
  gpumem::stream const a{first};
  auto mine = current_resource(first);
  auto* const p = mine.allocate(a, 100, 256);
  set_current_resource(first, pool()); // the former resource lives on in the copy
  mine.deallocate(a, p, 100, 256);
  EXPECT_EQ(gpumem::statistics_of(mine)->live, 0u);
}

TEST_F(current_resource_test, resource_lives_as_long_as_a_buffer_in_it) {
  set_current_resource(first, pool());
  gpumem::stream const a{first};
  gpumem::buffer block{a, 100};
  EXPECT_TRUE(block.resource() == gpumem::extend::make_any_memory(current_resource(first)));
  reset_current_resource(first);
  block.resize(10'000);
  EXPECT_FALSE(block.resource() == gpumem::extend::make_any_memory(current_resource(first)));
}

TEST_F(current_resource_test, resource_of_another_device_is_refused) {
  auto const at_first = current_resource(first);
  auto empty = pool();
  auto const gone = std::move(empty);
  EXPECT_THROW(set_current_resource(first, std::move(empty)), std::invalid_argument); // NOLINT(bugprone-use-after-move)
  EXPECT_THROW(set_current_resource(second, pool()), std::invalid_argument);
  EXPECT_TRUE(current_resource(first) == at_first);
}

TEST_F(current_resource_test, guard_sets_a_resource_for_a_scope) {
  auto const at_first = current_resource(first);
  auto const one = pool(), two = pool();
  {
    gpumem::scoped_current_resource const outer{first, one};
    EXPECT_TRUE(outer.previous() == at_first);
    {
      gpumem::scoped_current_resource const inner{two};
      EXPECT_TRUE(inner.previous() == one);
      EXPECT_TRUE(current_resource(first) == two);
    }
    EXPECT_TRUE(current_resource(first) == one);
    set_current_resource(first, two);
  }
  EXPECT_TRUE(current_resource(first) == at_first);
}

TEST_F(current_resource_test, resource_can_be_set_while_threads_use_it) {
  std::vector<any_pool> const pools{pool(), pool(), pool()};
  std::vector<std::thread> running;
  for (int i = 0; i < 4; ++i) {
    running.emplace_back([&, i] {
      gpumem::stream const mine{first};
      for (int k = 0; k < 100; ++k) {
        if (k % 7 == i) set_current_resource(first, pools[static_cast<std::size_t>(k) % pools.size()]);
        if (k % 31 == i) reset_current_resource(first);
        auto resource = current_resource(first);
        auto* const p = resource.allocate(mine, 512, 256);
        resource.deallocate(mine, p, 512, 256);
      }
    });
  }
  for (auto& thread : running) thread.join();
  for (auto each : pools) EXPECT_EQ(gpumem::statistics_of(each)->live, 0u);
}

TEST_F(current_resource_test, initial_resource_is_created_once_for_concurrent_threads) {
  std::vector<any_pool> seen(4, pool());
  std::vector<std::thread> running;
  for (auto& place : seen) running.emplace_back([&] { place = current_resource(second); });
  for (auto& thread : running) thread.join();
  for (auto const& each : seen) EXPECT_TRUE(each == seen.front());
}

} // namespace
