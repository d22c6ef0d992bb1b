// Random captures of several threads in scopes of one pool, under schedules: each capture stays valid, no two nodes
// without an order use the same bytes, and each launch of a graph finds in its memory what it has written.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::stream_ref;
using gpumem::driver_api::driver;
namespace simulator = gpumem::simulator;
using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;
constexpr std::size_t KiB = std::size_t{1} << 10, MiB = KiB << 10;

template <class Function> Function* simulated_function(char const* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

std::map<std::string, int> taken; // how often each path was taken; no lock: one thread runs at a time

struct live_block {
  void* data;
  std::size_t bytes;
  std::size_t on; // index of its stream
};

// The streams of one thread: an own one on which its captures begin, and others that join.
struct thread_streams {
  explicit thread_streams(gpumem::device where) : own{where}, side{where}, event{where} {
    gpumem::device_guard const here{where};
    for (auto* const made : {&raw, &promised})
      gpumem::driver_api::check(driver().stream_create(made, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    gpumem::driver_api::check(driver().event_create(&between, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    adopted.emplace(gpumem::stream::adopt(promised));
  }
  stream_ref at(std::size_t i) const {
    return std::array{stream_ref{own}, stream_ref{side}, stream_ref{raw}, stream_ref{promised}}[i];
  }
  static constexpr std::size_t count = 4;
  gpumem::stream own, side;
  gpumem::event event;
  CUstream raw = nullptr, promised = nullptr;
  CUevent between = nullptr;
  std::optional<gpumem::stream> adopted;
};

// The program of one thread. Its graphs share one graph memory and are launched in the order of their captures.
class capturing_thread {
public:
  capturing_thread(std::uint64_t seed, pool_type pool, thread_streams& streams)
      : chance_{seed}, pool_{std::move(pool)}, streams_{streams}, memory_{pool_} {}

  void run() {
    for (int round = 0; round < 3; ++round) {
      for (auto i = chance_() % 4; i > 0; --i) work_outside();
      capture();
      for (auto i = 1 + chance_() % 2; i > 0; --i) launch_all();
    }
    for (auto const& each : outside_) pool_.deallocate(streams_.at(each.on), each.data, each.bytes);
    for (auto const& each : inside_) memory_.deallocate(streams_.at(each.on), each.data, each.bytes);
    outside_.clear();
    inside_.clear();
  }
  // The caller has waited for all launches.
  void end() {
    for (auto const [graph, executable] : graphs_) {
      simulated_function<decltype(cuGraphExecDestroy)>("cuGraphExecDestroy")(executable);
      driver().graph_destroy(graph);
    }
    if (auto const now = memory_.statistics(); now.live + now.allocated > 0) fail("a graph memory counts live bytes");
    taken["ranges that were used again"] += static_cast<int>(memory_.statistics().reuse_same_stream);
    taken["ranges of other streams"] += static_cast<int>(memory_.statistics().reuse_ordered);
    taken["chunks of graph memories"] += static_cast<int>(memory_.statistics().upstream_allocations);
  }
  std::string const& failure() const { return failure_; }

private:
  void fail(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
  }
  std::size_t any_size() {
    constexpr std::size_t largest[] = {1 * KiB, 20 * KiB, 300 * KiB, 3 * MiB};
    return 1 + chance_() % largest[chance_() % 4];
  }
  static void stamp(live_block const& block, std::uint8_t with) {
    auto* const bytes = static_cast<std::uint8_t*>(block.data);
    bytes[0] = bytes[block.bytes / 2] = bytes[block.bytes - 1] = with;
  }
  void write(live_block const& block, std::uint8_t with) {
    simulator::work(streams_.at(block.on), {simulator::write(block.data, block.bytes)}, std::chrono::microseconds{2},
                    [=] { stamp(block, with); });
  }
  void check(live_block const& block, std::uint8_t expected) { check(block, expected, block.on); }
  void check(live_block const& block, std::uint8_t expected, std::size_t on) {
    simulator::work(streams_.at(on), {simulator::read(block.data, block.bytes)}, std::chrono::microseconds{2},
                    [=, this] {
                      auto const* const seen = static_cast<std::uint8_t const*>(block.data);
                      for (auto const at : {std::size_t{0}, block.bytes / 2, block.bytes - 1})
                        if (seen[at] != expected) fail("a graph found another stamp in its memory");
                    });
  }
  template <class List> live_block take_any(List& from) {
    std::swap(from[chance_() % from.size()], from.back());
    auto const taken_block = from.back();
    from.pop_back();
    return taken_block;
  }
  void order(std::size_t from, std::size_t to) {
    driver().event_record(streams_.between, streams_.at(from).get());
    driver().stream_wait_event(streams_.at(to).get(), streams_.between, 0);
  }

  // Ordinary use of the pool, on streams that do not capture now.
  void work_outside() {
    auto const on = chance_() % thread_streams::count;
    if (auto const got = pool_.try_allocate(streams_.at(on), any_size()); got) {
      live_block const block{*got, pool_.find(*got)->bytes, on};
      write(block, 1);
      outside_.push_back(block);
    }
    if (outside_.size() < 4) return;
    auto const block = take_any(outside_);
    pool_.deallocate(streams_.at(block.on), block.data, block.bytes);
  }

  void capture() {
    constexpr CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                             CU_STREAM_CAPTURE_MODE_RELAXED};
    auto const mode = modes[chance_() % 3];
    bool const early = chance_() % 2, raw = chance_() % 2;
    std::optional<gpumem::capture_scope> scope;
    if (early) scope.emplace(pool_.capture(memory_, streams_.own));
    if (raw) {
      driver().stream_begin_capture(streams_.own.get(), mode);
    } else {
      streams_.own.begin_capture(mode);
    }
    if (!early) scope.emplace(pool_.capture(memory_, streams_.own));
    joined_ = {true, false, false, false};
    written_.clear();
    for (auto i = 4 + chance_() % 28; i > 0; --i) step_in_capture();
    for (std::size_t i = 1; i < thread_streams::count; ++i)
      if (joined_[i]) order(i, 0);
    CUgraph graph = nullptr;
    auto const ended = driver().stream_end_capture(streams_.own.get(), &graph);
    if (!raw && ended == CUDA_SUCCESS) end_known_capture();
    if (ended != CUDA_SUCCESS) return fail("a capture was disturbed: " + std::to_string(ended));
    CUgraphExec executable = nullptr;
    simulated_function<decltype(cuGraphInstantiateWithFlags)>("cuGraphInstantiateWithFlags")(&executable, graph, 0);
    graphs_.emplace_back(graph, executable);
    ++taken[mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? "captures in global mode" : "captures in other modes"];
  }
  // Ends a second, empty capture, so that gpumem knows of the end.
  void end_known_capture() {
    streams_.own.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    driver().graph_destroy(streams_.own.end_capture());
  }

  void step_in_capture() {
    auto const on = chance_() % thread_streams::count;
    if (!joined_[on]) {
      order(0, on);
      joined_[on] = true;
      ++taken["streams that joined"];
    }
    switch (chance_() % 10) {
    case 0:
    case 8: return free_inside(on);
    case 1: return free_outside(on);
    case 9: return use_elsewhere(on);
    case 2: order(on, chance_() % thread_streams::count == 0 || !joined_[1] ? 0 : 1); return;
    case 3:
      if (!written_.empty()) {
        auto const& [block, stamped] = written_[chance_() % written_.size()];
        check(block, stamped);
      }
      return;
    default: return allocate_inside(on);
    }
  }
  void allocate_inside(std::size_t on) {
    auto const bytes = any_size();
    auto const got = pool_.try_allocate(streams_.at(on), bytes);
    if (!got) {
      if (got.error().reason != gpumem::outcome::exhausted)
        fail("a request in a scope ended as " + std::string{to_string(got.error().reason)});
      ++taken["requests without memory"];
      return;
    }
    if (!memory_.find(*got)) fail("a request in a scope got memory of the pool");
    live_block const block{*got, bytes, on};
    auto const with = static_cast<std::uint8_t>(2 + chance_() % 250);
    write(block, with);
    written_.emplace_back(block, with);
    inside_.push_back(block);
  }
  // Uses a block on another stream. The block's stream then waits for that, or the use is declared.
  void use_elsewhere(std::size_t on) {
    if (written_.empty()) return;
    auto const& [block, stamped] = written_[chance_() % written_.size()];
    if (!joined_[block.on] || block.on == on) return;
    order(block.on, on);
    check(block, stamped, on);
    if (chance_() % 2) return order(on, block.on);
    pool_.record_use(block.data, streams_.at(on));
    ++taken["declared uses"];
  }
  // Frees a block of graph memory on its stream, or on another one that is ordered after it.
  void free_inside(std::size_t on) {
    if (inside_.empty()) return;
    auto const block = take_any(inside_);
    std::erase_if(written_, [&](auto const& each) { return each.first.data == block.data; });
    bool const elsewhere = chance_() % 2 && joined_[block.on];
    if (elsewhere) order(block.on, on);
    auto const by = elsewhere ? on : block.on;
    ++taken[elsewhere ? "frees on another stream" : "frees on the block's stream"];
    if (chance_() % 2) {
      pool_.deallocate(streams_.at(by), block.data, block.bytes);
    } else {
      pool_.deallocate(streams_.at(by), block.data);
    }
  }
  void free_outside(std::size_t on) {
    if (outside_.empty()) return;
    auto const block = take_any(outside_);
    if (joined_[block.on]) on = block.on;
    if (on != block.on) return outside_.push_back(block);
    pool_.deallocate(streams_.at(on), block.data, block.bytes);
    ++taken["deferred frees"];
  }

  void launch_all() {
    for (auto const& [graph, executable] : graphs_) {
      simulated_function<decltype(cuGraphLaunch)>("cuGraphLaunch")(executable, streams_.own.get());
      ++taken["launches"];
    }
    order(0, 1);
  }

  std::mt19937_64 chance_;
  pool_type pool_;
  thread_streams& streams_;
  gpumem::graph_resource<pool_type> memory_;
  std::array<bool, thread_streams::count> joined_{};
  std::vector<live_block> outside_, inside_;
  std::vector<std::pair<live_block, std::uint8_t>> written_; // by the capture that is open
  std::vector<std::pair<CUgraph, CUgraphExec>> graphs_;
  std::string failure_;
};

std::string run_seed(std::uint64_t seed, std::vector<std::unique_ptr<thread_streams>>& streams) {
  simulator::seed(seed);
  std::string wrong;
  {
    gpumem::device const device{0};
    pool_type pool{device, {.limit = seed % 3 ? 0 : 10 * MiB}};
    std::vector<std::unique_ptr<capturing_thread>> threads;
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      auto& made = *threads.emplace_back(std::make_unique<capturing_thread>(seed * 8 + i, pool, *streams[i]));
      bodies.emplace_back([&made, device] {
        gpumem::device_guard const here{device};
        made.run();
      });
    }
    gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 7);
    for (auto const& each : streams) each->own.synchronize(); // all launches are complete
    for (auto& each : threads) {
      each->end();
      wrong += each->failure();
    }
    threads.clear();
    if (pool.statistics().live != 0) wrong += "graph memory did not go back; ";
  }
  for (auto const& each : simulator::take_findings()) wrong += each.text + "; ";
  return wrong;
}

TEST(capture_schedule, captures_stay_valid_and_graphs_find_their_stamps) {
  std::vector<std::unique_ptr<thread_streams>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(std::make_unique<thread_streams>(gpumem::device{0}));
  test::schedule_seeds const seeds{150, 20};
  seeds.each([&](std::uint64_t seed) { ASSERT_EQ(run_seed(seed, streams), "") << "GPUMEM_SEED=" << seed; });
  for (auto const& [path, times] : taken) std::printf("  %-32s %d\n", path.c_str(), times);
  if (seeds.alone()) return;
  for (auto const* const path :
       {"captures in global mode", "captures in other modes", "streams that joined", "requests without memory",
        "frees on another stream", "frees on the block's stream", "deferred frees", "launches",
        "ranges that were used again", "ranges of other streams", "declared uses", "chunks of graph memories"})
    EXPECT_GT(taken[path], 0) << path;
}

} // namespace
