// Checks of the programs of the bridge headers, which use no test framework, and their streams on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>

extern "C" {
#include "simulated.h"
}

struct CUstream_st;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

[[noreturn]] void fail(char const* what, int line) {
  std::fprintf(stderr, "line %d: check failed: %s\n", line, what);
  std::exit(1);
}
#define REQUIRE(holds) ((holds) ? void() : fail(#holds, __LINE__))

/// Returns the exception of that type which the work throws; ends the program if it throws none.
template <class Exception, class Work> Exception thrown_by(Work work) {
  try {
    work();
  } catch (Exception const& e) { return e; }
  fail("an exception", 0);
}

CUstream_st* new_stream() { return static_cast<CUstream_st*>(simulated_stream(0)); }

} // namespace
