// Checks of the programs that nvcc alone builds: a failed one ends the program and names its line.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(call) check((call), #call, __LINE__)
#define REQUIRE(holds) require((holds), #holds, __LINE__)

static void require(bool holds, char const* what, int line) {
  if (holds) return;
  std::fprintf(stderr, "line %d: check failed: %s\n", line, what);
  std::exit(1);
}
static void check(cudaError_t got, char const* what, int line) {
  if (got != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(got));
  require(got == cudaSuccess, what, line);
}
