// The tests of gpumem-heap-bench, and how one of them runs over one heap.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "heap.hpp"

#include <string>
#include <vector>

namespace heaps {

struct options {
  std::vector<unsigned> threads{100'000, 1'000'000};
  std::vector<unsigned> bytes{16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  std::vector<std::string> names; // of heaps; empty: all
  unsigned repeats = 15;
  double seconds = 1;   // of warm repeats, at most
  double patience = 30; // seconds for one test, after which a heap counts as hung
  double budget = 120;  // seconds for all tests of a heap, after which the others are left out
  std::size_t heap_bytes = std::size_t{16} << 30;
  std::uint64_t operations = 1'000'000'000; // of the long run
  std::string json;
};

enum class test_kind { none, allocate, single_thread, churn, exhaust, endure };

struct test {
  test_kind kind;
  unsigned threads;
  sizes pattern;
  std::string label() const;
};

/// Returns all tests, the short ones first.
std::vector<test> tests_of(options const& with);

/// The notes of a test that a heap cannot run, and of one that was left out after failures or for lack of time.
inline constexpr char const *not_possible = "not possible", *not_run = "not run";

/// The figures of one test: microseconds of one launch, or shares. Negative: not measured.
struct result {
  double allocate_cold = -1, allocate_warm = -1, free_cold = -1, free_warm = -1;
  double churn_cold = -1, churn_warm = -1; // microseconds of one launch
  double utilization = -1;                 // live bytes, rounded up to classes / bytes of slabs in use
  double served = -1,
         served_again = -1; // bytes granted until null / bytes of the heap, before and after all were freed
  double operations = -1, operations_per_microsecond = -1;
  double lost_bytes = -1;
  std::uint64_t missing = 0, misaligned = 0, overwritten = 0;
  unsigned repeats = 0;
  std::string note;

  /// Returns what is wrong with the heap: empty if it is right.
  std::string fault() const;
};

/// Returns the result as one line of text, and reads it back.
std::string to_line(result const& from);
result from_line(std::string const& line);

/// Runs a test over a heap of its own. Throws std::runtime_error if a call of CUDA fails.
result measure(heap_kind const& kind, test const& which, options const& with);

} // namespace heaps
