// Google Benchmark.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

void turn(benchmark::State& state) {
  for ([[maybe_unused]] auto iteration : state) {
  }
}
BENCHMARK(turn);
BENCHMARK_MAIN();
