// Checks of the tests of the C ABI, and their main.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

#include <stdio.h>
#include <string.h>

#include "simulated.h"

#define MIB ((size_t)1 << 20)

static int failures = 0;
#define EXPECT(condition) expect((condition) != 0, #condition, __LINE__)
#define EXPECT_REFUSED(call, outcome, sentence) expect_refused((call), (outcome), (sentence), #call, __LINE__)

static void expect(int holds, char const* what, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: check failed: %s; last error: %s\n", line, what, gpumem_last_error());
  ++failures;
}

static void expect_refused(gpumem_outcome got, gpumem_outcome wanted, char const* sentence, char const* what,
                           int line) {
  if (got == wanted && strstr(gpumem_last_error(), sentence)) return;
  fprintf(stderr, "line %d: %s is %s, \"%s\"\n", line, what, gpumem_outcome_name(got), gpumem_last_error());
  ++failures;
}

static gpumem_pool* make(char const* options) {
  gpumem_pool* pool = NULL;
  EXPECT(gpumem_make_pool(0, options, &pool) == GPUMEM_GRANTED);
  return pool;
}

static gpumem_statistics statistics_of(gpumem_pool* pool) {
  gpumem_statistics statistics = {.size = sizeof statistics};
  EXPECT(gpumem_read_statistics(pool, &statistics) == GPUMEM_GRANTED);
  return statistics;
}

static void* allocate(gpumem_pool* pool, void* stream, size_t bytes) {
  void* pointer = NULL;
  EXPECT(gpumem_allocate(pool, stream, bytes, GPUMEM_ALIGNMENT, &pointer) == GPUMEM_GRANTED);
  simulated_allocated(stream, pointer, bytes);
  return pointer;
}

static void release(gpumem_pool* pool, void* stream, void* pointer, size_t bytes) {
  simulated_freed(stream, pointer, bytes);
  EXPECT(gpumem_free_sized(pool, stream, pointer, bytes) == GPUMEM_GRANTED);
}

typedef struct test {
  char const* name;
  void (*run)(void);
} test;

/// Runs the test that the arguments name, or all. Returns the exit status.
static int run_tests(test const* tests, size_t number, int count, char** arguments) {
  int run = 0;
  simulated_reset(2);
  for (size_t i = 0; i < number; ++i) {
    if (count > 1 && strcmp(arguments[1], tests[i].name) != 0) continue;
    ++run;
    tests[i].run();
    expect(simulated_finish() == 0, tests[i].name, __LINE__);
  }
  if (run == 0) fprintf(stderr, "there is no test %s\n", arguments[1]);
  return failures != 0 || run == 0;
}
