// The C ABI as a C program uses it: figures of failures, requests that wait, and calls that steer a pool.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "checks.h"

static int file_has(char const* path, char const* text) {
  static char content[1 << 16];
  FILE* file = fopen(path, "rb");
  if (!file) return 0;
  size_t const bytes = fread(content, 1, sizeof content - 1, file);
  fclose(file);
  for (size_t i = 0; i + strlen(text) <= bytes; ++i) {
    if (memcmp(content + i, text, strlen(text)) == 0) return 1;
  }
  return 0;
}

static gpumem_failure last_failure(void) {
  gpumem_failure failure = {.size = sizeof failure};
  EXPECT(gpumem_read_failure(&failure) == GPUMEM_GRANTED);
  return failure;
}

static void figures_of_a_failure(void) {
  EXPECT(last_failure().outcome == GPUMEM_GRANTED);
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("limit=8MiB");
  void* block = allocate(pool, stream, 6 * MIB);
  void* pointer = NULL;
  EXPECT(gpumem_allocate(pool, stream, 5 * MIB, GPUMEM_ALIGNMENT, &pointer) == GPUMEM_EXHAUSTED);
  gpumem_failure const failure = last_failure();
  EXPECT(failure.outcome == GPUMEM_EXHAUSTED && failure.requested == 5 * MIB && failure.limit == 8 * MIB);
  EXPECT(failure.live == 6 * MIB && failure.reserved == 6 * MIB && failure.device == 0 && failure.device_total != 0);
  EXPECT(gpumem_allocate(pool, stream, 1, 3, &pointer) == GPUMEM_INVALID_ARGUMENT);
  EXPECT(last_failure().outcome == GPUMEM_INVALID_ARGUMENT && last_failure().live == 0 && last_failure().code == -1);
  gpumem_failure small = {.size = sizeof(size_t)};
  EXPECT_REFUSED(gpumem_read_failure(&small), GPUMEM_INVALID_ARGUMENT, "write sizeof(gpumem_failure)");
  EXPECT_REFUSED(gpumem_read_failure(NULL), GPUMEM_INVALID_ARGUMENT, "NULL");
  release(pool, stream, block, 6 * MIB);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void labels_and_snapshots(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("limit=8MiB");
  void* block = allocate(pool, stream, 1 * MIB);
  EXPECT(gpumem_set_label(pool, block, "weights of the first layer") == GPUMEM_GRANTED);
  EXPECT(gpumem_set_label(pool, NULL, "nothing") == GPUMEM_GRANTED);
  EXPECT_REFUSED(gpumem_set_label(pool, &pool, "foreign"), GPUMEM_INVALID_ARGUMENT, "no live block");
  EXPECT_REFUSED(gpumem_set_label(NULL, block, "a"), GPUMEM_INVALID_ARGUMENT, "the pool is NULL");
  EXPECT(gpumem_write_snapshot(pool, "snapshot.json", NULL) == GPUMEM_GRANTED);
  EXPECT(file_has("snapshot.json", "\"label\":\"weights of the first layer\""));
  EXPECT(gpumem_write_snapshot(pool, "snapshot.json", " format = pickle ") == GPUMEM_GRANTED);
  EXPECT(file_has("snapshot.json", "active_allocated") && !file_has("snapshot.json", "{\"format\""));
  EXPECT(gpumem_set_label(pool, block, NULL) == GPUMEM_GRANTED);
  EXPECT(gpumem_write_snapshot(pool, "snapshot.json", "format=json") == GPUMEM_GRANTED);
  EXPECT(!file_has("snapshot.json", "weights"));
  EXPECT(remove("snapshot.json") == 0);
  gpumem_outcome const wrong = GPUMEM_INVALID_ARGUMENT;
  EXPECT_REFUSED(gpumem_write_snapshot(pool, "/no/such/folder/file", NULL), wrong, "/no/such/folder/file");
  EXPECT_REFUSED(gpumem_write_snapshot(pool, "file", "format=xml"), wrong, "json or pickle, not 'xml'");
  EXPECT_REFUSED(gpumem_write_snapshot(pool, "file", "form=json"), wrong, "unknown option 'form'");
  EXPECT_REFUSED(gpumem_write_snapshot(pool, "file", "format=json,format=json"), wrong, "repeated");
  EXPECT_REFUSED(gpumem_write_snapshot(pool, NULL, NULL), wrong, "the path is NULL");
  EXPECT_REFUSED(gpumem_write_snapshot(NULL, "file", NULL), wrong, "the pool is NULL");
  release(pool, stream, block, 1 * MIB);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  pool = make("statistics(pool)");
  EXPECT(gpumem_allocate(pool, stream, 1000, GPUMEM_ALIGNMENT, &block) == GPUMEM_GRANTED);
  EXPECT(gpumem_set_label(pool, block, "through the adaptor") == GPUMEM_GRANTED);
  EXPECT_REFUSED(gpumem_set_label(pool, &pool, "foreign"), wrong, "no live block");
  EXPECT(gpumem_write_snapshot(pool, "snapshot.json", NULL) == GPUMEM_GRANTED);
  EXPECT(file_has("snapshot.json", "\"label\":\"through the adaptor\""));
  EXPECT(remove("snapshot.json") == 0);
  EXPECT(gpumem_free(pool, stream, block) == GPUMEM_GRANTED);
  EXPECT_REFUSED(gpumem_free(pool, stream, block), wrong, "double free");
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  pool = make("limiting(pool,limit=8MiB)");
  EXPECT(gpumem_allocate(pool, stream, 1000, GPUMEM_ALIGNMENT, &block) == GPUMEM_GRANTED);
  EXPECT_REFUSED(gpumem_write_snapshot(pool, "file", NULL), wrong, "not a stack");
  EXPECT(gpumem_free(pool, stream, block) == GPUMEM_GRANTED);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void requests_that_wait(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("limit=8MiB");
  void* block = allocate(pool, stream, 6 * MIB);
  void* pointer = NULL;
  EXPECT_REFUSED(gpumem_acquire(pool, stream, 6 * MIB, GPUMEM_ALIGNMENT, 1000, &pointer), GPUMEM_DEADLINE, "deadline");
  EXPECT_REFUSED(gpumem_acquire(pool, stream, 6 * MIB, GPUMEM_ALIGNMENT, 0, &pointer), GPUMEM_DEADLINE, "deadline");
  EXPECT_REFUSED(gpumem_acquire(pool, stream, 9 * MIB, GPUMEM_ALIGNMENT, UINT64_MAX, &pointer), GPUMEM_TOO_LARGE,
                 "too_large");
  EXPECT_REFUSED(gpumem_acquire(pool, stream, 1, GPUMEM_ALIGNMENT, 0, NULL), GPUMEM_INVALID_ARGUMENT, "NULL");
  EXPECT_REFUSED(gpumem_acquire(NULL, stream, 1, GPUMEM_ALIGNMENT, 0, &pointer), GPUMEM_INVALID_ARGUMENT, "NULL");
  release(pool, stream, block, 6 * MIB);
  simulated_begin_capture(stream);
  EXPECT_REFUSED(gpumem_acquire(pool, stream, MIB, GPUMEM_ALIGNMENT, UINT64_MAX, &pointer), GPUMEM_CAPTURE_UNSUPPORTED,
                 "capture");
  simulated_end_capture(stream);
  EXPECT(gpumem_acquire(pool, stream, 6 * MIB, GPUMEM_ALIGNMENT, UINT64_MAX, &pointer) == GPUMEM_GRANTED);
  simulated_allocated(stream, pointer, 6 * MIB);
  release(pool, stream, pointer, 6 * MIB);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void a_pool_is_steered(void) {
  gpumem_pool* pool = make(NULL);
  EXPECT(gpumem_reserve(pool, 16 * MIB) == GPUMEM_GRANTED && statistics_of(pool).reserved >= 16 * MIB);
  EXPECT(gpumem_set_limit(pool, 32 * MIB) == GPUMEM_GRANTED && statistics_of(pool).limit == 32 * MIB);
  EXPECT_REFUSED(gpumem_reserve(pool, 64 * MIB), GPUMEM_TOO_LARGE, "too_large");
  EXPECT_REFUSED(gpumem_reserve(NULL, 1), GPUMEM_INVALID_ARGUMENT, "NULL");
  EXPECT_REFUSED(gpumem_set_limit(NULL, 1), GPUMEM_INVALID_ARGUMENT, "NULL");
  int device = -1;
  EXPECT(gpumem_device(pool, &device) == GPUMEM_GRANTED && device == 0);
  EXPECT_REFUSED(gpumem_device(pool, NULL), GPUMEM_INVALID_ARGUMENT, "NULL");
  EXPECT_REFUSED(gpumem_device(NULL, &device), GPUMEM_INVALID_ARGUMENT, "NULL");

  int accessible = -1;
  EXPECT(gpumem_host_accessible(pool, &accessible) == GPUMEM_GRANTED && accessible == 0);
  EXPECT_REFUSED(gpumem_host_accessible(pool, NULL), GPUMEM_INVALID_ARGUMENT, "NULL");
  EXPECT_REFUSED(gpumem_host_accessible(NULL, &accessible), GPUMEM_INVALID_ARGUMENT, "NULL");
  gpumem_pool* managed = NULL;
  EXPECT(gpumem_make_pool(0, "statistics(pool(managed))", &managed) == GPUMEM_GRANTED);
  EXPECT(gpumem_host_accessible(managed, &accessible) == GPUMEM_GRANTED && accessible == 1);
  gpumem_release(managed);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  pool = make("limiting(pool,limit=1GiB)");
  EXPECT_REFUSED(gpumem_reserve(pool, MIB), GPUMEM_INVALID_ARGUMENT, "only a pool");
  EXPECT_REFUSED(gpumem_set_limit(pool, MIB), GPUMEM_INVALID_ARGUMENT, "only a pool");
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static test const tests[] = {
    {"figures_of_a_failure", figures_of_a_failure},
    {"labels_and_snapshots", labels_and_snapshots},
    {"requests_that_wait", requests_that_wait},
    {"a_pool_is_steered", a_pool_is_steered},
};

int main(int count, char** arguments) { return run_tests(tests, sizeof tests / sizeof *tests, count, arguments); }
