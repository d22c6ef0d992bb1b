// Checks the promised order of requests under memory pressure. One thread runs, and gpumem's own thread runs by the
// clock of the schedules, so that each run can be replayed by its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"
#include "property/random_source.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "waiting_request.hpp"
#include "queue_model.hpp"
#include "waiting_program.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::outcome;
using gpumem::reuse_policy;
using gpumem_test::MiB;
using gpumem_test::waiting_request;
using namespace std::chrono_literals;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

class pool_waiting_pressure : public testing::Test {
protected:
  static void SetUpTestSuite() {
    simulator::load({.mode = simulator::stepping::manual});
    simulator::set_schedule_hooks(nullptr, [](void*) { return gpumem::detail::schedule::blocked(); }, nullptr);
  }
  void SetUp() override {
    for (int i = 0; i < 3; ++i) streams.emplace_back(gpumem::device{0});
  }
  std::string run(std::uint64_t seed, gpumem_test::tally& counts, bool tells) {
    simulator::seed(seed);
    std::string wrong;
    bool const alone = gpumem_test::waiting_program::form_of(seed).pages || seed / 8 % 2 == 0;
    auto const body = [&] { wrong = gpumem_test::waiting_program{seed, streams, alone, counts, tells}.run(); };
    if (alone) {
      run_alone(body);
    } else {
      gpumem::detail::schedule::run(seed, {body}, 1 + seed % 5);
    }
    return wrong;
  }
  // Runs on one thread, which keeps the processor until it sleeps.
  static void run_alone(std::function<void()> body) {
    gpumem::detail::schedule::run([](std::size_t, bool) { return 0; }, {std::move(body)});
  }
  std::vector<gpumem::stream> streams;
};

TEST_F(pool_waiting_pressure, every_request_ends_once_and_in_order) {
  test::schedule_seeds const seeds{2'000, 20};
  gpumem_test::tally counts;
  seeds.each([&](std::uint64_t seed) {
    auto const wrong = run(seed, counts, seeds.alone());
    ASSERT_EQ(wrong, "") << "GPUMEM_SEED=" << seed;
  });
  for (auto const& [what, times] : counts) {
    std::printf("%10llu %s\n", static_cast<unsigned long long>(times), what.c_str());
    if (!seeds.alone() && !HasFatalFailure()) EXPECT_GT(times, seeds.count() / 100) << what;
  }
}

TEST_F(pool_waiting_pressure, request_gets_memory_that_another_attempt_saw_complete) {
  run_alone([this] {
    pool one{gpumem::device{0}, {.limit = 28 * MiB, .cross_stream = reuse_policy::ordered}};
    auto const kept = one.acquire(streams[0], 16 * MiB).wait();
    auto freed = one.acquire(streams[2], 12 * MiB).wait();
    simulator::work(freed.stream(), {simulator::write(freed.data(), freed.bytes())});
    freed.reset();
    one.set_limit(22 * MiB);
    waiting_request second{one, streams[1], 6 * MiB};
    EXPECT_FALSE(second.ended()) << "the kernel still runs";
    simulator::run_until_idle();
    waiting_request first{one, streams[1], 12 * MiB, 1};
    ASSERT_TRUE(first.called());
    first.resume();
    EXPECT_FALSE(first.ended()) << "6 MiB are left of the limit";
    gpumem::detail::sync::sleep_for(2ms);
    ASSERT_TRUE(second.called());
    second.resume();
    EXPECT_EQ(second.ended(), outcome::granted);
  });
}

} // namespace
