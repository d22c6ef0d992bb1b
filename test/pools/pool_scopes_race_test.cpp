// Units of work that want more memory than the pool has, on free-running threads: all of them end, and no memory is
// lost.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::task;
using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;

constexpr std::size_t unit = 256, limit = 100 * unit;

class pool_scopes_race : public testing::Test {
protected:
  gpumem::thread_pool_executor threads{4};
  std::vector<gpumem::stream> streams;
  std::atomic<std::size_t> again{0}, ended{0};

  void SetUp() override {
    for (int i = 0; i < 4; ++i) streams.emplace_back(gpumem::device{0});
  }

  // Allocates its batch in three parts; other threads run in between.
  task<> parts(gpumem::scope<pool_type> work, gpumem::stream& on, std::size_t batch) {
    std::array<gpumem::allocation, 3> held;
    std::size_t at = 0;
    for (auto const share : {4, 3, 3}) {
      held.at(at) = co_await work.acquire(on, batch / 10 * share, {.resume_on = &threads});
      simulator::work(on, {simulator::write(held.at(at).data(), held.at(at).bytes())});
      ++at;
      for (int i = 0; i < 3; ++i) co_await test::hop{threads};
    }
  }

  task<> whole(pool_type& pool, std::uint64_t seed) {
    std::minstd_rand random{static_cast<std::uint32_t>(seed)};
    co_await test::hop{threads};
    for (int i = 0; i < 20; ++i) {
      gpumem::scope work{pool};
      auto const batch = (1 + random() / 64 % 5) * 10 * unit; // so that it finds contiguous memory when it runs alone
      auto& on = streams[random() / 64 % streams.size()];
      co_await gpumem::with_retry(
          work, [this, work, &on, batch] { return parts(work, on, batch); }, [this] { ++again; }, &threads);
      ++ended;
    }
  }
};

TEST_F(pool_scopes_race, all_work_that_can_be_rolled_back_ends) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    pool_type pool{gpumem::device{0}, {.limit = limit, .pages = false}};
    std::vector<task<>> all;
    for (std::uint64_t i = 0; i < 12; ++i) all.push_back(whole(pool, seed * 100 + i));
    gpumem::sync_wait(gpumem::when_all(std::move(all)));
    EXPECT_EQ(pool.statistics().live, 0u);
    EXPECT_EQ(pool.statistics().waiting, 0u);
  }
  EXPECT_EQ(ended, 10 * 12 * 20u);
  std::printf("%zu restarts\n", again.load());
}

} // namespace
