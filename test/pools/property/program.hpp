// Random programs over a pool. They are correct, so that every finding of the simulated device is a fault of the pool.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gpumem_test {

// Counts of events by name: tiers, coalescing, growth, operations.
using tally = std::map<std::string, std::uint64_t>;

struct program_result {
  std::string failure; // empty: none
  std::uint64_t trace = 0;
  std::uint64_t operations = 0;
  std::uint64_t frees = 0;
  std::uint64_t frees_elsewhere = 0; // on another stream than the block's allocation
  tally counts;
};

struct program_options {
  int threads = 3;
  int operations = 110; // per thread
};

// Runs the threads of a program until they end.
using program_runner = std::function<void(std::uint64_t seed, std::vector<std::function<void()>>)>;

// Makes the objects that live as long as the process: the simulated device and the streams. Starts no thread.
void prepare_programs();

program_result run_program(std::uint64_t seed, program_options const& how, program_runner const& run);

} // namespace gpumem_test
