// The arguments of every row: the device, the streams, and the length of a sample.
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

/// The streams are made once and live until exit. Each row starts with all of them idle.
struct context {
  gpumem::device device;
  bool simulated;
  std::size_t operations; ///< minimum per sample and thread
  double shortest;        ///< minimum seconds of a sample on a real device
  std::vector<gpumem::stream> streams;

  std::span<gpumem::stream const> first(std::size_t count) const { return std::span{streams}.first(count); }
  void synchronize() {
    for (auto& each : streams) each.synchronize();
  }
  /// Returns the number of operations of a sample, given the seconds that `operations` of them took. The number is
  /// even, since each allocation has its free.
  std::size_t enough(double seconds) const {
    if (simulated) return operations;
    auto const times = std::clamp(shortest / std::max(seconds, 1e-6), 1.0, 1e4);
    auto const pairs = operations / 2;
    return static_cast<std::size_t>(static_cast<double>(pairs) * times) * 2;
  }
};

/// Measures samples of `run(operations)`, which returns seconds. Two runs come first: one warms up, one determines how
/// many operations make a sample long enough. Each of `threads` threads does that many. Records nanoseconds per
/// operation, and millions of operations per second, of the median sample.
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
