// What every row is given: the device, streams, and how much to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <span>
#include <vector>

namespace bench {

/// Streams are made once: they are never destroyed before exit, and a row starts with all of them idle.
struct context {
  gpumem::device device;
  bool simulated;
  std::size_t operations; ///< of one measured stretch and thread
  std::vector<gpumem::stream> streams;

  std::span<gpumem::stream const> first(std::size_t count) const { return std::span{streams}.first(count); }
  void synchronize() {
    for (auto& each : streams) each.synchronize();
  }
};

/// `operations` in all threads took `seconds`: shown as nanoseconds of one, and as millions a second.
inline void note_speed(benchmark::State& state, double operations, double seconds) {
  state.counters["ns_per_op"] = seconds / operations * 1e9;
  state.counters["Mops"] = operations / seconds / 1e6;
}

} // namespace bench
