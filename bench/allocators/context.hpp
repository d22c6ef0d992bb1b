// What every row is given: the device, streams, and how much to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "metrics.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace bench {

/// Streams are made once: they are never destroyed before exit, and a row starts with all of them idle.
struct context {
  gpumem::device device;
  bool simulated;
  std::size_t operations; ///< of one measured sample and thread, at least
  double shortest;        ///< sample on a real device, seconds
  std::vector<gpumem::stream> streams;

  std::span<gpumem::stream const> first(std::size_t count) const { return std::span{streams}.first(count); }
  void synchronize() {
    for (auto& each : streams) each.synchronize();
  }
  /// How many operations make a sample, where the fewest took so many seconds. Even: an allocation has its free.
  std::size_t enough(double seconds) const {
    if (simulated) return operations;
    auto const times = std::clamp(shortest / std::max(seconds, 1e-6), 1.0, 1e4);
    auto const pairs = operations / 2;
    return static_cast<std::size_t>(static_cast<double>(pairs) * times) * 2;
  }
};

/// Measures samples of `run(operations)`, which gives seconds, after one that warms up and one that tells how many
/// operations are long enough. `threads` do so many each. Of the median: nanoseconds of one operation, and millions a
/// second.
template <class Run> void measure(benchmark::State& state, context const& with, std::size_t threads, Run const& run) {
  run(with.operations);
  auto const operations = with.enough(run(with.operations));
  std::vector<double> samples;
  for (auto _ : state) {
    samples.push_back(run(operations));
    state.SetIterationTime(samples.back());
  }
  auto const each = replay::median(std::move(samples)) / static_cast<double>(operations * threads);
  record(state, metric::ns_per_op, each * 1e9);
  record(state, metric::mops, 1e-6 / each);
}

} // namespace bench
