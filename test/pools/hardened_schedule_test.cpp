// Threads that misuse a hardened pool, under schedules: the pool must report every planted misuse and nothing else.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::misuse;
using gpumem::pool_resource;
namespace simulator = gpumem::simulator;

constexpr std::size_t kinds = static_cast<std::size_t>(misuse::kind::use_after_free) + 1;
using tally = std::array<int, kinds>;
tally told{}; // no lock: one thread runs at a time

void count(tally& in, misuse::kind what) noexcept { ++in[static_cast<std::size_t>(what)]; }

struct block {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// The blocks of one thread: the device writes them in order, and some are freed wrongly.
class misuser {
public:
  misuser(std::uint64_t seed, pool_resource<gpumem::cuda_resource> pool, gpumem::stream& on)
      : chance_{seed}, pool_{std::move(pool)}, on_{on} {}

  void run(int blocks) {
    for (int i = 0; i < blocks; ++i) {
      auto const bytes = 1 + chance_() % (std::size_t{1} << (4 + chance_() % 12));
      auto const made = pool_.try_allocate(on_, bytes);
      if (made) live_.push_back({*made, bytes});
      if (live_.size() > 3) free_one();
    }
    while (!live_.empty()) free_one();
  }
  tally const& planted() const { return planted_; }

private:
  // Writes without telling the simulated device's checker, which would report the fault itself.
  void scribble(char* first, std::size_t bytes) {
    simulator::work(on_, {}, {}, [=] { std::memset(first, 5, bytes); });
  }

  void free_one() {
    std::swap(live_[chance_() % live_.size()], live_.back());
    auto const b = live_.back();
    live_.pop_back();
    auto* const first = static_cast<char*>(b.data);
    simulator::work(on_, {simulator::write(first, b.bytes)});
    switch (chance_() % 8) {
    case 0:
      scribble(first + b.bytes, 1 + chance_() % 64);
      count(planted_, misuse::kind::overrun);
      break;
    case 1:
      scribble(first - 8, 8);
      count(planted_, misuse::kind::underrun);
      break;
    case 2: return free_twice(b);
    default: break;
    }
    pool_.deallocate(on_, b.data, b.bytes);
  }

  // Frees the block on two threads at once.
  void free_twice(block b) {
    gpumem::detail::sync::thread other{[&] { pool_.deallocate(on_, b.data, b.bytes); }};
    pool_.deallocate(on_, b.data, b.bytes);
    other.join();
    count(planted_, misuse::kind::double_free);
  }

  std::mt19937_64 chance_;
  pool_resource<gpumem::cuda_resource> pool_;
  gpumem::stream& on_;
  std::vector<block> live_;
  tally planted_{};
};

struct result_of_seed {
  tally planted{}, found{};
  gpumem::statistics left;
  std::string findings;
};

result_of_seed run_misusers(std::uint64_t seed, std::vector<gpumem::stream>& streams) {
  simulator::seed(seed);
  told = {};
  result_of_seed result;
  gpumem::hardening_options const how{.enabled = true, .quarantine = seed % 4 * 8192};
  pool_resource<gpumem::cuda_resource> pool{gpumem::cuda_resource{gpumem::device{0}},
                                            {.limit = seed % 3 ? 0 : std::size_t{64} << 10, .hardened = how}};
  std::vector<misuser> misusers;
  for (std::size_t i = 0; i < streams.size(); ++i) misusers.emplace_back(seed * streams.size() + i, pool, streams[i]);
  std::vector<std::function<void()>> bodies;
  for (auto& each : misusers) bodies.emplace_back([&each] { each.run(12); });
  gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 7);
  if (!pool.synchronize(std::chrono::seconds{10})) result.findings = "not synchronized; ";
  for (auto const& each : misusers) {
    for (std::size_t i = 0; i < kinds; ++i) result.planted[i] += each.planted()[i];
  }
  result.found = told;
  result.left = pool.statistics();
  for (auto const& each : simulator::take_findings()) result.findings += each.text + "; ";
  return result;
}

class hardened_schedule : public testing::Test {
protected:
  void SetUp() override {
    before_ = gpumem::set_misuse_handler([](misuse const& m) noexcept { count(told, m.what); });
    for (int i = 0; i < 2; ++i) streams.emplace_back(gpumem::device{0});
  }
  void TearDown() override { gpumem::set_misuse_handler(before_); }
  std::vector<gpumem::stream> streams;

private:
  gpumem::misuse_handler before_ = nullptr;
};

TEST_F(hardened_schedule, every_planted_misuse_is_found_and_nothing_else) {
  tally sum{};
  test::schedule_seeds const seeds{100, 10};
  seeds.each([&](std::uint64_t seed) {
    auto const result = run_misusers(seed, streams);
    ASSERT_EQ(result.found, result.planted) << "GPUMEM_SEED=" << seed;
    ASSERT_EQ(result.findings, "") << "GPUMEM_SEED=" << seed;
    ASSERT_EQ(result.left.live + result.left.allocated + result.left.quarantined, 0u) << "GPUMEM_SEED=" << seed;
    ASSERT_EQ(result.left.allocations, result.left.frees) << "GPUMEM_SEED=" << seed;
    for (std::size_t i = 0; i < kinds; ++i) sum[i] += result.found[i];
  });
  if (seeds.alone()) return;
  for (auto const kind : {misuse::kind::overrun, misuse::kind::underrun, misuse::kind::double_free}) {
    EXPECT_GT(sum[static_cast<std::size_t>(kind)], 0) << to_string(kind);
  }
}

// A raw stream, and a block that is freed during a capture: no event covers that free until a later call with the
// handle.
class uncovered_free : public hardened_schedule {
protected:
  using pool_type = pool_resource<gpumem::cuda_resource>;

  void SetUp() override {
    hardened_schedule::SetUp();
    gpumem::device_guard const here{gpumem::device{0}};
    CUstream made = nullptr;
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&made, CU_STREAM_NON_BLOCKING),
                              "cuStreamCreate");
    raw = gpumem::stream_ref{made};
  }
  void TearDown() override {
    gpumem::driver_api::driver().stream_destroy(raw.get());
    hardened_schedule::TearDown();
  }

  static pool_type make_pool() {
    return pool_type{gpumem::cuda_resource{gpumem::device{0}}, {.limit = 64 * KiB, .hardened = {.enabled = true}}};
  }
  void free_in_capture(pool_type& pool) const {
    auto* const p = pool.allocate(raw, bytes);
    gpumem::driver_api::check(
        gpumem::driver_api::driver().stream_begin_capture(raw.get(), CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
    pool.deallocate(raw, p, bytes);
    CUgraph graph = nullptr;
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_end_capture(raw.get(), &graph), "end");
    gpumem::driver_api::driver().graph_destroy(graph);
  }
  static std::uint64_t run(std::function<void()> const& body) {
    auto const on_the_device = [&] {
      gpumem::device_guard const here{gpumem::device{0}};
      body();
    };
    return gpumem::detail::schedule::run(1, {on_the_device}).marks;
  }

  static constexpr std::size_t KiB = std::size_t{1} << 10, bytes = 40 * KiB;
  gpumem::stream_ref raw{CUstream{}};
};

TEST_F(uncovered_free, closed_pool_does_not_poll_for_a_free_without_an_event) {
  auto const before = simulator::report().bytes_allocated;
  run([&] {
    auto pool = make_pool();
    free_in_capture(pool);
  });
  auto const marks = run([] { gpumem::detail::sync::sleep_for(1s); });
  EXPECT_LT(marks, 200u) << "the library thread polls again and again";
  EXPECT_GT(simulator::report().bytes_allocated, before);
  run([&] {
    gpumem::extend::identify(raw, gpumem::device{0});
    gpumem::detail::sync::sleep_for(1s);
  });
  EXPECT_EQ(simulator::report().bytes_allocated, before);
}

TEST_F(uncovered_free, only_a_request_that_may_wait_waits_for_a_free_without_an_event) {
  run([&] {
    auto pool = make_pool();
    free_in_capture(pool);
    auto const begin = gpumem::detail::sync::now();
    EXPECT_FALSE(pool.try_allocate(streams[0], bytes));
    auto const refused = gpumem::detail::sync::now();
    EXPECT_THROW((void)pool.allocate(streams[0], bytes), gpumem::out_of_memory);
    auto const waited = gpumem::detail::sync::now() - refused;
    EXPECT_LT(refused - begin, 20us) << "slept";
    EXPECT_GE(waited, 20us);
    EXPECT_LT(waited, 1100ms);
    gpumem::extend::identify(raw, gpumem::device{0});
  });
}

} // namespace
