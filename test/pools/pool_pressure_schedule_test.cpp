// Pressure callbacks that are coroutines, unregistered while they run and while requests wait, under schedules. Each
// run can be replayed by its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::task;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

constexpr std::size_t unit = 256, limit = 64 * unit;

struct result_of_seed {
  std::string wrong;
  unsigned begun = 0, ended = 0, granted = 0, cut = 0;
};

// One thread's requests wait for memory that a callback frees. The callback runs on another thread and suspends twice
// before it frees. A third thread unregisters the callback meanwhile.
class program {
public:
  program(std::uint64_t seed, std::vector<gpumem::stream>& streams) : seed_{seed}, streams_{streams} {}

  result_of_seed run() {
    simulator::seed(seed_);
    for (auto& each : cached_) each = shared_.acquire(streams_[0], limit / 2).wait();
    spiller_ = shared_.on_pressure(executor_, [this](std::size_t wanted) { return free_some(wanted); });
    gpumem::detail::schedule::run(seed_, {[this] { request_event(); }, [this] { serve(); }, [this] { take_back(); }},
                                  1 + seed_ % 5);
    cached_ = {};
    if (executor_.run_one()) result_.wrong += "a posted work item was not run; ";
    if (result_.begun != result_.ended) result_.wrong += "a callback was left suspended; ";
    if (shared_.statistics().live != 0) result_.wrong += "memory was lost; ";
    for (auto const& each : simulator::take_findings()) result_.wrong += each.text + "; ";
    return result_;
  }

private:
  task<std::size_t> free_some(std::size_t wanted) {
    auto& mine = cached_[result_.begun++ % 2];
    for (int i = 0; i < 2; ++i) {
      if (gone_) result_.wrong += "a function runs whose callback is gone; ";
      co_await test::hop{executor_};
    }
    if (gone_) result_.wrong += "a function runs whose callback is gone; ";
    ++result_.ended;
    if (!frees_) co_return 0;
    mine.reset();
    co_return wanted;
  }

  void request_event() {
    auto const soon = gpumem::detail::sync::now() + std::chrono::hours{1};
    for (auto const bytes : {limit / 2, limit}) {
      result_.granted += shared_.acquire(streams_[1], bytes).wait_until(soon).has_value();
    }
    asked_ = true;
  }
  void serve() {
    while (!asked_ || !gone_) {
      if (!executor_.run_one()) gpumem::detail::sync::schedule_point();
    }
  }
  void take_back() {
    auto const calls = frees_ ? 1 + seed_ / 3 % 2 : 1; // minimum number of calls before it is unregistered
    while (result_.begun < calls && !asked_) gpumem::detail::sync::schedule_point();
    for (auto i = seed_ / 6 % 20; i > 0; --i) gpumem::detail::sync::schedule_point();
    result_.cut = result_.begun > result_.ended;
    spiller_ = {};
    gone_ = true;
    shared_.close(); // ends the waiting requests
  }

  std::uint64_t const seed_;
  bool const frees_ = seed_ % 3 != 0;
  std::vector<gpumem::stream>& streams_;
  result_of_seed result_;
  test::manual_executor executor_;
  pool shared_{gpumem::device{0}, {.limit = limit, .pages = false}};
  std::array<gpumem::allocation, 2> cached_;
  gpumem::pressure_callback spiller_;
  std::atomic<bool> gone_{false}, asked_{false};
};

TEST(pool_pressure_schedule, callback_destructor_waits_for_functions_that_await) {
  test::schedule_seeds const seeds{3'000, 5};
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 2; ++i) streams.emplace_back(gpumem::device{0});
  struct {
    unsigned begun = 0, again = 0, cut = 0, granted = 0;
  } sum;
  seeds.each([&](std::uint64_t seed) {
    auto const one = program{seed, streams}.run();
    ASSERT_EQ(one.wrong, "") << "GPUMEM_SEED=" << seed;
    sum.begun += one.begun;
    sum.again += one.begun > 1;
    sum.cut += one.cut;
    sum.granted += one.granted;
  });
  std::printf("%u callbacks begun, several in %u seeds; %u unregistered while one ran; %u requests granted\n",
              sum.begun, sum.again, sum.cut, sum.granted);
  if (seeds.alone()) return;
  EXPECT_GT(sum.begun, seeds.count() / 20);
  EXPECT_GT(sum.again, seeds.count() / 100);
  EXPECT_GT(sum.cut, seeds.count() / 100);
  EXPECT_GT(sum.granted, seeds.count() / 20);
}

} // namespace
