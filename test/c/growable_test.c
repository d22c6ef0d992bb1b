// Buffers that grow, as a C program uses them.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/growable.h>

#include <stdint.h>
#include <string.h>

#include "checks.h"

static gpumem_outcome const wrong = GPUMEM_INVALID_ARGUMENT;

static gpumem_growable* make_growable(gpumem_pool* pool, void* stream, char const* options) {
  gpumem_growable* buffer = NULL;
  EXPECT(gpumem_growable_make(pool, stream, options, &buffer) == GPUMEM_GRANTED);
  return buffer;
}

static gpumem_growable_sizes sizes_of(gpumem_growable* buffer) {
  gpumem_growable_sizes sizes = {.size = sizeof sizes};
  EXPECT(gpumem_growable_info(buffer, &sizes) == GPUMEM_GRANTED);
  return sizes;
}

static void growable_keeps_its_address(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("");
  gpumem_growable* buffer = make_growable(pool, stream, " reserve = 1GiB , initial=4MiB, page=2MiB, name=cache");
  gpumem_growable_sizes const first = sizes_of(buffer);
  EXPECT(first.bytes == 4 * MIB && first.reserved == 1024 * MIB && first.granularity == 2 * MIB);
  EXPECT(statistics_of(pool).lent == first.mapped);
  EXPECT(gpumem_growable_grow(buffer, stream, 100 * MIB, 0) == GPUMEM_GRANTED);
  gpumem_growable_sizes const grown = sizes_of(buffer);
  EXPECT(grown.data == first.data && grown.bytes == 100 * MIB && grown.mapped >= 100 * MIB);
  simulated_write(stream, grown.data, 100 * MIB);
  EXPECT(gpumem_growable_shrink(buffer, stream, 10 * MIB) == GPUMEM_GRANTED);
  EXPECT(sizes_of(buffer).bytes == 10 * MIB && sizes_of(buffer).mapped == 10 * MIB);
  EXPECT(gpumem_growable_discard(buffer, stream, 2 * MIB, 4 * MIB) == GPUMEM_GRANTED);
  EXPECT(sizes_of(buffer).bytes == 10 * MIB && sizes_of(buffer).mapped == 6 * MIB);
  EXPECT(gpumem_growable_restore(buffer, stream, 2 * MIB, 2 * MIB, UINT64_MAX) == GPUMEM_GRANTED);
  EXPECT(sizes_of(buffer).mapped == 8 * MIB);
  simulated_write(stream, first.data, 4 * MIB);
  simulated_run();
  EXPECT(gpumem_growable_free(buffer) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).lent == 0);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  pool = make("statistics(pool)");
  buffer = make_growable(pool, stream, "reserve=1GiB,initial=64MiB,discarded=on");
  EXPECT(sizes_of(buffer).bytes == 64 * MIB && statistics_of(pool).lent == 0);
  EXPECT(gpumem_growable_restore(buffer, stream, 32 * MIB, 4 * MIB, 0) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).lent == 4 * MIB);
  EXPECT(gpumem_growable_free(buffer) == GPUMEM_GRANTED);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void growable_outlives_the_reference_to_its_pool(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("");
  gpumem_growable* buffer = make_growable(pool, stream, "reserve=64MiB,initial=2MiB");
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  simulated_write(stream, sizes_of(buffer).data, 2 * MIB);
  EXPECT(gpumem_growable_free(buffer) == GPUMEM_GRANTED);
  simulated_run();
}

static void growable_waits_until_its_deadline(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("limit=16MiB");
  void* block = allocate(pool, stream, 8 * MIB);
  gpumem_growable* buffer = make_growable(pool, stream, "reserve=64MiB,initial=4MiB");
  gpumem_growable_sizes const before = sizes_of(buffer);
  EXPECT_REFUSED(gpumem_growable_grow(buffer, stream, 12 * MIB, 0), GPUMEM_DEADLINE, "deadline");
  EXPECT_REFUSED(gpumem_growable_grow(buffer, stream, 12 * MIB, 1000000), GPUMEM_DEADLINE, "deadline");
  EXPECT(sizes_of(buffer).bytes == before.bytes && sizes_of(buffer).mapped == before.mapped);
  release(pool, stream, block, 8 * MIB);
  simulated_run();
  EXPECT(gpumem_growable_grow(buffer, stream, 12 * MIB, UINT64_MAX) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).reserved <= 16 * MIB);
  EXPECT(gpumem_growable_free(buffer) == GPUMEM_GRANTED);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void growable_refuses_wrong_calls(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("");
  gpumem_growable* buffer = NULL;
  EXPECT_REFUSED(gpumem_growable_make(NULL, stream, "reserve=64MiB", &buffer), wrong, "the pool is NULL");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, "reserve=64MiB", NULL), wrong, "the out-pointer is NULL");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, NULL, &buffer), wrong, "reserve");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, "reserve=much", &buffer), wrong, "'reserve' is not a size: much");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, "reserve=64MiB,reserve=2MiB", &buffer), wrong, "given twice");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, "reserve=64MiB,size=2MiB", &buffer), wrong, "'size' is no option");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, "reserve=64MiB,initial", &buffer), wrong, "'initial' has no value");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, "pool(reserve=64MiB)", &buffer), wrong, "not a resource");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, "reserve=64MiB,discarded=1", &buffer), wrong, "on or off, not '1'");
  EXPECT_REFUSED(gpumem_growable_make(pool, stream, "reserve=64MiB,page=3MiB", &buffer), wrong, "3145728");
  EXPECT(buffer == NULL);
  buffer = make_growable(pool, stream, "reserve=64MiB,initial=8MiB,page=2MiB");
  EXPECT_REFUSED(gpumem_growable_grow(buffer, stream, 65 * MIB, 0), GPUMEM_TOO_LARGE, "68157440");
  EXPECT_REFUSED(gpumem_growable_grow(NULL, stream, 65 * MIB, 0), wrong, "the buffer is NULL");
  EXPECT_REFUSED(gpumem_growable_shrink(buffer, stream, 9 * MIB), wrong, "9437184");
  EXPECT_REFUSED(gpumem_growable_shrink(NULL, stream, 0), wrong, "the buffer is NULL");
  EXPECT_REFUSED(gpumem_growable_discard(buffer, stream, 1000, 2 * MIB), wrong, "1000");
  EXPECT_REFUSED(gpumem_growable_discard(NULL, stream, 0, 0), wrong, "the buffer is NULL");
  EXPECT_REFUSED(gpumem_growable_restore(buffer, stream, 0, 2 * MIB, 0), wrong, "0");
  EXPECT_REFUSED(gpumem_growable_restore(NULL, stream, 0, 0, 0), wrong, "the buffer is NULL");
  EXPECT(gpumem_growable_discard(buffer, stream, 0, 2 * MIB) == GPUMEM_GRANTED);
  EXPECT_REFUSED(gpumem_growable_discard(buffer, stream, 0, 2 * MIB), wrong, "discard");
  gpumem_growable_sizes small = {.size = sizeof(size_t)};
  EXPECT_REFUSED(gpumem_growable_info(buffer, &small), wrong, "write sizeof(gpumem_growable_sizes)");
  EXPECT_REFUSED(gpumem_growable_info(buffer, NULL), wrong, "the out-pointer is NULL");
  EXPECT_REFUSED(gpumem_growable_info(NULL, &small), wrong, "the buffer is NULL");
  EXPECT(gpumem_growable_free(NULL) == GPUMEM_GRANTED);
  void* capturing = simulated_stream(0);
  simulated_begin_capture(capturing);
  EXPECT_REFUSED(gpumem_growable_grow(buffer, capturing, 32 * MIB, 0), GPUMEM_CAPTURE_UNSUPPORTED, "captur");
  simulated_end_capture(capturing);
  EXPECT(sizes_of(buffer).bytes == 8 * MIB);
  EXPECT(gpumem_growable_free(buffer) == GPUMEM_GRANTED);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void growable_needs_a_pool_over_pages(void) {
  void* stream = simulated_stream(0);
  gpumem_growable* buffer = NULL;
  char const* const without_pages[] = {"pages=off", "pool(managed)", "fixed(cuda,block_size=1MiB)",
                                       "limiting(pool,limit=1GiB)"};
  for (size_t i = 0; i < sizeof without_pages / sizeof *without_pages; ++i) {
    gpumem_pool* pool = make(without_pages[i]);
    EXPECT_REFUSED(gpumem_growable_make(pool, stream, "reserve=64MiB", &buffer), wrong, "pages");
    EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  }
}

static test const tests[] = {
    {"growable_keeps_its_address", growable_keeps_its_address},
    {"growable_outlives_the_reference_to_its_pool", growable_outlives_the_reference_to_its_pool},
    {"growable_waits_until_its_deadline", growable_waits_until_its_deadline},
    {"growable_refuses_wrong_calls", growable_refuses_wrong_calls},
    {"growable_needs_a_pool_over_pages", growable_needs_a_pool_over_pages},
};

int main(int count, char** arguments) { return run_tests(tests, sizeof tests / sizeof *tests, count, arguments); }
