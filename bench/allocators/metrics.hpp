// The metrics of the rows, by name: a row records some of them, and the CSV output has a column for each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>

namespace bench {

enum class metric : unsigned char {
  ns_per_op,
  mops,
  filled_by_reserved,
  alloc_p50, // the quantiles of a call follow each other in this order
  alloc_p99,
  alloc_p999,
  alloc_max,
  free_p50,
  free_p99,
  free_p999,
  free_max,
  cold,
  warm,
  cold_reserved,
  after_pause,
  reserved_mib,
};

/// Names in the order of `metric`.
inline constexpr std::array<char const*, 16> metric_names{
    "ns_per_op", "Mops",          "filled/reserved", "alloc_p50",   "alloc_p99", "alloc_p99.9",
    "alloc_max", "free_p50",      "free_p99",        "free_p99.9",  "free_max",  "cold",
    "warm",      "cold_reserved", "after_pause",     "reserved_MiB"};

inline void record(benchmark::State& state, metric which, double value) {
  state.counters[metric_names[static_cast<std::size_t>(which)]] = value;
}

} // namespace bench
