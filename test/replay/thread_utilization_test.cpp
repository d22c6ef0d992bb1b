// The utilization of a pool whose threads each replay a recorded trace, under schedules that a seed decides.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

import gpumem;

namespace {

using trace = std::vector<gpumem::extend::trace_record>;

std::string unpacked(std::string const& path) {
  gzFile const file = gzopen(path.c_str(), "rb");
  if (!file) throw std::runtime_error("no " + path);
  std::string text;
  std::array<char, 1 << 16> part;
  for (int got = 0; (got = gzread(file, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(got));
  gzclose(file);
  return text;
}

trace records_of(std::string const& name) {
  return gpumem::extend::trace_reader{unpacked(GPUMEM_TRACES "/" + name + ".csv.gz")}.read_all();
}

// The counts of all threads; no lock, since one thread runs at a time.
struct counts {
  std::size_t live = 0, peak_live = 0;
  std::uint64_t shards = 1; // the most that there were
  void add(std::size_t bytes) { peak_live = std::max(peak_live, live += bytes); }
};

using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;

// One thread's replay, on streams of its own.
void replay(trace const& records, pool_type pool, counts& all) {
  std::map<std::uint64_t, gpumem::stream> streams;
  std::map<std::uint64_t, std::pair<void*, std::size_t>> blocks; // by recorded pointer
  auto const on = [&](std::uint64_t recorded) -> gpumem::stream& {
    return streams.try_emplace(recorded, gpumem::device{0}).first->second;
  };
  for (auto const& each : records) {
    if (each.action == gpumem::extend::trace_action::allocate) {
      blocks[each.pointer] = {pool.allocate(on(each.stream), each.bytes), each.bytes};
      all.add(each.bytes);
    } else if (auto const found = blocks.find(each.pointer); found != blocks.end()) {
      all.live -= each.bytes;
      pool.deallocate(on(each.stream), found->second.first, each.bytes);
      blocks.erase(found);
    }
  }
  all.shards = std::max(all.shards, pool.statistics().shards);
  for (auto const& [recorded, block] : blocks) {
    all.live -= block.second;
    pool.deallocate(streams.begin()->second, block.first, block.second);
  }
}

// Returns a pool without memory that has saved all the time for moves that a pool can save.
pool_type make_pool(double effort = 1) {
  namespace tuning = gpumem::detail::tuning;
  namespace sync = gpumem::detail::sync;
  pool_type pool{gpumem::device{0}, {.effort = effort}};
  auto const longest = std::chrono::duration_cast<sync::duration>(tuning::max_move_burst / effort);
  for (auto const end = sync::now() + longest + 4 * tuning::max_move_burst; sync::now() < end;) {
    pool.deallocate_sync(pool.allocate_sync(256), 256);
    sync::sleep_for(tuning::max_move_burst);
  }
  pool.trim();
  return pool;
}

// Returns the utilization of a pool that holds no memory while each thread replays the trace.
double utilization_of(pool_type pool, trace const& records, unsigned threads, std::uint64_t seed) {
  counts all;
  std::vector<std::function<void()>> bodies(threads, [&] { replay(records, pool, all); });
  constexpr unsigned switch_one_in = 200;
  pool.reset_peaks();
  gpumem::detail::schedule::run(seed, std::move(bodies), switch_one_in);
  if (threads > 1) EXPECT_GT(all.shards, 1u) << "the threads found no lock taken";
  gpumem::simulator::take_findings(); // a trace has no events: its frees on other streams are unordered
  return static_cast<double>(all.peak_live) / static_cast<double>(pool.statistics().peak_reserved);
}

class thread_utilization : public testing::TestWithParam<char const*> {
protected:
  static void SetUpTestSuite() {
    gpumem::simulator::load({.mode = gpumem::simulator::stepping::immediate});
    gpumem::simulator::set_schedule_hooks(nullptr, [](void*) { return gpumem::detail::schedule::blocked(); }, nullptr);
  }
};

TEST_P(thread_utilization, several_threads_fill_what_they_reserve_as_one_does) {
  auto const records = records_of(GetParam());
  for (double const effort : {1., gpumem::pool_options{}.effort}) {
    double const alone = utilization_of(make_pool(effort), records, 1, 1);
    double sum = 0; // the moment at which threads meet changes the result by up to .03
    std::array const runs{std::pair{2U, 1U}, std::pair{2U, 2U}, std::pair{4U, 1U}};
    for (auto const& [threads, seed] : runs) sum += utilization_of(make_pool(effort), records, threads, seed);
    EXPECT_GE(sum / static_cast<double>(runs.size()), alone - .08) << "effort " << effort;
  }
}

TEST_P(thread_utilization, one_thread_fills_the_same_after_others_have_contended) {
  auto const records = records_of(GetParam());
  double const before = utilization_of(make_pool(), records, 1, 1);
  auto pool = make_pool();
  utilization_of(pool, records, 4, 1);
  pool.trim();
  EXPECT_NEAR(utilization_of(pool, records, 1, 1), before, .02);
}

INSTANTIATE_TEST_SUITE_P(traces, thread_utilization, testing::Values("etl_skew", "prefetch_streams", "moe_train"),
                         [](auto const& info) { return std::string{info.param}; });

} // namespace
