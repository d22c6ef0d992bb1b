// Random programs over a pool: correct ones, so that whatever the simulated device finds is the pool's fault.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gpumem_test {

// What happened, by name: tiers, joins, growths, kinds of operations.
using tally = std::map<std::string, std::uint64_t>;

struct program_result {
  std::string failure; // empty: none
  std::uint64_t trace = 0;
  std::uint64_t operations = 0;
  std::uint64_t frees = 0;
  std::uint64_t frees_elsewhere = 0; // on another stream than the block was granted to
  tally counts;
};

struct program_options {
  int threads = 3;
  int operations = 110; // of each thread
};

// Runs the threads of a program to their end.
using program_runner = std::function<void(std::uint64_t seed, std::vector<std::function<void()>>)>;

// Makes what lives as long as the process: the simulated device, the streams. Starts no thread.
void prepare_programs();

program_result run_program(std::uint64_t seed, program_options const& how, program_runner const& run);

} // namespace gpumem_test
