// The C ABI as a C program uses it: compiled by a C compiler, linked only with the shared library.
// SPDX-License-Identifier: Apache-2.0
#define _POSIX_C_SOURCE 200809L
#include <gpumem/gpumem.h>

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

static void a_pool_from_make_to_release(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("limit=1GiB, initial_size=16MiB, name=c");
  EXPECT(gpumem_version() == GPUMEM_VERSION);
  EXPECT(statistics_of(pool).reserved == 16 * MIB);
  EXPECT(statistics_of(pool).limit == 1024 * MIB);
  void* first = allocate(pool, stream, 3 * MIB);
  void* second = allocate(pool, stream, 100);
  EXPECT(first && second && first != second);
  EXPECT(statistics_of(pool).live == 3 * MIB + 100);
  EXPECT(statistics_of(pool).allocated == 3 * MIB + 256);
  release(pool, stream, first, 3 * MIB);
  simulated_freed(stream, second, 100);
  EXPECT(gpumem_free(pool, stream, second) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).live == 0);
  EXPECT(statistics_of(pool).allocations == 2 && statistics_of(pool).frees == 2);
  EXPECT(gpumem_retain(pool) == GPUMEM_GRANTED);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  EXPECT(allocate(pool, stream, 3 * MIB) == first);
  release(pool, stream, first, 3 * MIB);
  size_t unused = 0, given_back = 1;
  EXPECT(gpumem_trim(pool, 0, &unused) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).reserved == 16 * MIB - unused);
  EXPECT(statistics_of(pool).reserved >= 3 * MIB); // the host has not seen any work complete
  EXPECT_REFUSED(gpumem_synchronize(pool, 0), GPUMEM_DEADLINE, "a wait was not completed: deadline");
  simulated_run();
  EXPECT(gpumem_synchronize(pool, 1000000000) == GPUMEM_GRANTED);
  EXPECT(gpumem_trim(pool, 0, &given_back) == GPUMEM_GRANTED);
  EXPECT(given_back == 16 * MIB - unused && simulated_device_bytes() == 0);
  EXPECT(gpumem_synchronize(pool, UINT64_MAX) == GPUMEM_GRANTED);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void pools_inside_a_stack_are_synchronized(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* stack = make("statistics(fallback(pool(limit=2MiB),pool(limit=8MiB)))");
  void* block = allocate(stack, stream, 6 * MIB);
  size_t given_back = 1;
  release(stack, stream, block, 6 * MIB);
  EXPECT_REFUSED(gpumem_synchronize(stack, 0), GPUMEM_DEADLINE, "a wait was not completed: deadline");
  EXPECT(gpumem_trim(stack, 0, &given_back) == GPUMEM_GRANTED && given_back == 0);
  simulated_run();
  EXPECT(gpumem_synchronize(stack, 1000000000) == GPUMEM_GRANTED);
  EXPECT(gpumem_trim(stack, 0, &given_back) == GPUMEM_GRANTED && given_back == 6 * MIB);
  EXPECT(gpumem_release(stack) == GPUMEM_GRANTED);
}

// Each of the two bins has a pool of its own.
static void bins_inside_a_stack_are_synchronized(void) {
  for (int asked = 0; asked < 2; ++asked) {
    void* stream = simulated_stream(0);
    gpumem_pool* stack = make("statistics(binning(pool,bins=64KiB:fixed;1MiB:pool(limit=2MiB)))");
    size_t const bytes = asked ? MIB : 65536;
    size_t given_back = 1;
    release(stack, stream, allocate(stack, stream, bytes), bytes);
    EXPECT_REFUSED(gpumem_synchronize(stack, 0), GPUMEM_DEADLINE, "a wait was not completed: deadline");
    simulated_run();
    EXPECT(gpumem_synchronize(stack, 1000000000) == GPUMEM_GRANTED);
    EXPECT(gpumem_trim(stack, 0, &given_back) == GPUMEM_GRANTED && given_back > 0);
    EXPECT(gpumem_release(stack) == GPUMEM_GRANTED);
  }
}

static void blocks_are_freed_by_their_address_alone(void) {
  void* stream = simulated_stream(0);
  gpumem_pool *pool = make("name=first"), *stack = make("statistics(cuda)"), *found = NULL;
  void* first = allocate(pool, stream, 3 * MIB);
  void* second = NULL;
  EXPECT(gpumem_allocate(stack, stream, 100, 256, &second) == GPUMEM_GRANTED);
  EXPECT(gpumem_pool_of(first, &found) == GPUMEM_GRANTED && found == pool);
  EXPECT(gpumem_pool_of(second, &found) == GPUMEM_GRANTED && found == stack);
  EXPECT(gpumem_pool_of((char*)first + 256, &found) == GPUMEM_GRANTED && found == NULL);
  EXPECT(gpumem_pool_of(NULL, &found) == GPUMEM_GRANTED && found == NULL);
  EXPECT_REFUSED(gpumem_pool_of(first, NULL), GPUMEM_INVALID_ARGUMENT, "gpumem_pool_of: the out-pointer is NULL");
  simulated_freed(stream, first, 3 * MIB);
  EXPECT(gpumem_free_pointer(first) == GPUMEM_GRANTED);
  EXPECT_REFUSED(gpumem_free_pointer(first), GPUMEM_INVALID_ARGUMENT, "no pool has a live block at this address");
  EXPECT(gpumem_free_pointer(second) == GPUMEM_GRANTED);
  EXPECT(gpumem_free_pointer(NULL) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).live == 0 && statistics_of(pool).frees == 1);
  EXPECT(statistics_of(pool).peak_live == 3 * MIB && statistics_of(pool).reserved_in_all >= 3 * MIB);
  EXPECT(statistics_of(pool).shards == 1);
  EXPECT(gpumem_reset_peaks(pool) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).peak_live == 0 && statistics_of(pool).peak_reserved == statistics_of(pool).reserved);
  EXPECT(statistics_of(stack).peak_live > 0 && gpumem_reset_peaks(stack) == GPUMEM_GRANTED);
  EXPECT(statistics_of(stack).peak_live == 0);
  EXPECT_REFUSED(gpumem_reset_peaks(NULL), GPUMEM_INVALID_ARGUMENT, "the pool is NULL");
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED && gpumem_release(stack) == GPUMEM_GRANTED);
}

static void sizes_as_people_write_them(void) {
  struct {
    char const* options;
    unsigned long long bytes;
  } const written[] = {
      {"limit=4096", 4096},
      {"limit=4096B", 4096},
      {"limit=512KiB", 512ull << 10},
      {" limit = 1.5 MiB ", 3ull << 19},
      {"limit=2GB", 2000000000ull},
      {"limit=3kB,name=x", 3000},
      {"limit=0.25TiB", 1ull << 38},
      {"limit=1.1KiB", 1126},
      {"", 0},
      {"limit=0", 0},
  };
  for (size_t i = 0; i < sizeof written / sizeof *written; ++i) {
    gpumem_pool* pool = make(written[i].options);
    EXPECT(statistics_of(pool).limit == written[i].bytes);
    EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  }
}

static void options_that_are_refused(void) {
  struct {
    char const* options;
    char const* sentence;
  } const wrong[] = {
      // options_test.cpp tests the other errors.
      {"limt=8GiB", "'limt' is unknown; the options are chunk_size, cross_stream, effort, failure_report, guard, "},
      {"limit=8 gigs", "'limit' is not a size: '8 gigs'"},
      {"effort=nan", "'effort' must be a number from 0 to 1, not 'nan'"},
      {"pages=no", "'pages' must be on or off, not 'no'"},
      {"limit=1MiB,initial_size=2MiB", "initial_size is larger than its limit"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    gpumem_pool* pool = (gpumem_pool*)&failures;
    EXPECT_REFUSED(gpumem_make_pool(0, wrong[i].options, &pool), GPUMEM_INVALID_ARGUMENT, wrong[i].sentence);
    EXPECT(pool == (gpumem_pool*)&failures);
  }
  gpumem_pool* pool = NULL;
  EXPECT_REFUSED(gpumem_make_pool(7, NULL, &pool), GPUMEM_INVALID_ARGUMENT,
                 "there is no device 7; the device count is 2");
  EXPECT_REFUSED(gpumem_make_pool(-1, NULL, &pool), GPUMEM_INVALID_ARGUMENT, "there is no device -1");
  EXPECT(pool == NULL && simulated_device_bytes() == 0);
}

static void nulls_are_refused(void) {
  gpumem_pool* pool = make(NULL);
  void* pointer = NULL;
  size_t bytes = 0;
  gpumem_statistics statistics = statistics_of(pool);
  gpumem_block block = {sizeof block, NULL, 0, 0, 0, 0};
  gpumem_outcome const wrong = GPUMEM_INVALID_ARGUMENT;
  EXPECT_REFUSED(gpumem_make_pool(0, NULL, NULL), wrong, "gpumem_make_pool: the out-pointer is NULL");
  EXPECT_REFUSED(gpumem_retain(NULL), wrong, "gpumem_retain: the pool is NULL");
  EXPECT_REFUSED(gpumem_release(NULL), wrong, "gpumem_release: the pool is NULL");
  EXPECT_REFUSED(gpumem_allocate(NULL, NULL, 1, 1, &pointer), wrong, "gpumem_allocate: the pool is NULL");
  EXPECT_REFUSED(gpumem_allocate(pool, NULL, 1, 1, NULL), wrong, "gpumem_allocate: the out-pointer is NULL");
  EXPECT_REFUSED(gpumem_allocate_sync(NULL, 1, 1, &pointer), wrong, "gpumem_allocate_sync: the pool is NULL");
  EXPECT_REFUSED(gpumem_allocate_sync(pool, 1, 1, NULL), wrong, "gpumem_allocate_sync: the out-pointer is NULL");
  EXPECT_REFUSED(gpumem_free(NULL, NULL, NULL), wrong, "gpumem_free: the pool is NULL");
  EXPECT_REFUSED(gpumem_free_sized(NULL, NULL, NULL, 0), wrong, "gpumem_free_sized: the pool is NULL");
  EXPECT_REFUSED(gpumem_free_sync(NULL, NULL, 0), wrong, "gpumem_free_sync: the pool is NULL");
  EXPECT_REFUSED(gpumem_record_use(NULL, NULL, NULL), wrong, "gpumem_record_use: the pool is NULL");
  EXPECT_REFUSED(gpumem_synchronize(NULL, 0), wrong, "gpumem_synchronize: the pool is NULL");
  EXPECT_REFUSED(gpumem_trim(NULL, 0, &bytes), wrong, "gpumem_trim: the pool is NULL");
  EXPECT_REFUSED(gpumem_trim(pool, 0, NULL), wrong, "gpumem_trim: the out-pointer is NULL");
  EXPECT_REFUSED(gpumem_read_statistics(NULL, &statistics), wrong, "gpumem_read_statistics: the pool is NULL");
  EXPECT_REFUSED(gpumem_read_statistics(pool, NULL), wrong, "gpumem_read_statistics: the out-pointer is NULL");
  EXPECT_REFUSED(gpumem_find(NULL, NULL, &block), wrong, "gpumem_find: the pool is NULL");
  EXPECT_REFUSED(gpumem_find(pool, NULL, NULL), wrong, "gpumem_find: the out-pointer is NULL");
  EXPECT(pointer == NULL && statistics_of(pool).allocations == 0);
  // With null pointers and zero bytes these succeed, as in the standard library.
  EXPECT(gpumem_free(pool, NULL, NULL) == GPUMEM_GRANTED);
  EXPECT(gpumem_free_sync(pool, NULL, 0) == GPUMEM_GRANTED);
  EXPECT(gpumem_record_use(pool, NULL, NULL) == GPUMEM_GRANTED);
  pointer = pool;
  EXPECT(gpumem_allocate(pool, NULL, 0, GPUMEM_ALIGNMENT, &pointer) == GPUMEM_GRANTED && pointer == NULL);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void misuse_is_an_outcome(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("name=misused");
  void* block = allocate(pool, stream, MIB);
  void* inside = (char*)block + 512;
  gpumem_outcome const wrong = GPUMEM_INVALID_ARGUMENT;
  EXPECT_REFUSED(gpumem_free(pool, stream, &pool), wrong, "misused: a pointer that it never gave out");
  EXPECT_REFUSED(gpumem_free(pool, stream, inside), wrong, "a pointer that it never gave out");
  EXPECT_REFUSED(gpumem_free_sized(pool, stream, block, MIB + 1), wrong, "1048577 bytes given, 1048576 bytes expected");
  EXPECT_REFUSED(gpumem_free_sync(pool, block, 1), wrong, "a free with another size than the allocation's");
  EXPECT_REFUSED(gpumem_record_use(pool, &pool, stream), wrong, "a pointer that it never gave out");
  EXPECT(statistics_of(pool).live == MIB);
  release(pool, stream, block, MIB);
  EXPECT_REFUSED(gpumem_free(pool, stream, block), wrong, "a double free");
  void* pointer = &pool;
  EXPECT_REFUSED(gpumem_allocate(pool, stream, 1, 3, &pointer), wrong, "power of two");
  EXPECT_REFUSED(gpumem_allocate(pool, stream, 1, 0, &pointer), wrong, "power of two");
  simulated_make_current(1);
  EXPECT_REFUSED(gpumem_allocate(pool, NULL, 1, 1, &pointer), wrong, "");
  EXPECT_REFUSED(gpumem_allocate(pool, GPUMEM_STREAM_LEGACY, 1, 1, &pointer), wrong, "");
  EXPECT(pointer == &pool);
  EXPECT(strcmp(gpumem_outcome_name(GPUMEM_EXHAUSTED), "exhausted") == 0);
  EXPECT(strcmp(gpumem_outcome_name((gpumem_outcome)256), "unknown outcome") == 0);
  EXPECT(strcmp(gpumem_outcome_name((gpumem_outcome)-1), "unknown outcome") == 0);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void no_memory_leaves_everything_as_it_was(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("limit=8MiB");
  void* block = allocate(pool, stream, 6 * MIB);
  void* pointer = &pool;
  EXPECT_REFUSED(gpumem_allocate(pool, stream, 4 * MIB, 256, &pointer), GPUMEM_EXHAUSTED, "requested 4.0 MiB");
  EXPECT_REFUSED(gpumem_allocate(pool, stream, 9 * MIB, 256, &pointer), GPUMEM_TOO_LARGE, "limit 8.0 MiB");
  EXPECT_REFUSED(gpumem_allocate(pool, stream, SIZE_MAX, 256, &pointer), GPUMEM_TOO_LARGE, "out of memory");
  EXPECT(pointer == &pool && statistics_of(pool).live == 6 * MIB);
  release(pool, stream, block, 6 * MIB);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);

  simulated_fail_allocation(1);
  EXPECT_REFUSED(gpumem_make_pool(0, "initial_size=2MiB", (gpumem_pool**)&pointer), GPUMEM_EXHAUSTED, "out of memory");
  EXPECT(pointer == &pool);
}

static void a_capturing_stream_is_refused(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make(NULL);
  void* pointer = NULL;
  simulated_begin_capture(stream);
  EXPECT_REFUSED(gpumem_allocate(pool, stream, 1, 1, &pointer), GPUMEM_CAPTURE_UNSUPPORTED, "capture_unsupported");
  simulated_end_capture(stream);
  release(pool, stream, allocate(pool, stream, 1), 1);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void structures_of_older_callers(void) {
  gpumem_pool* pool = make("initial_size=2MiB,limit=4MiB");
  struct {
    size_t size;
    uint64_t live, allocated, reserved, after;
  } older = {4 * sizeof(uint64_t), 9, 9, 9, 9};
  EXPECT(gpumem_read_statistics(pool, (gpumem_statistics*)(void*)&older) == GPUMEM_GRANTED);
  EXPECT(older.live == 0 && older.allocated == 0 && older.reserved == 2 * MIB && older.after == 9);
  EXPECT(older.size == 4 * sizeof(uint64_t));
  older.size = sizeof(size_t);
  EXPECT_REFUSED(gpumem_read_statistics(pool, (gpumem_statistics*)(void*)&older), GPUMEM_INVALID_ARGUMENT, "too small");
  gpumem_block block = {0, NULL, 0, 0, 0, 0};
  EXPECT_REFUSED(gpumem_find(pool, NULL, &block), GPUMEM_INVALID_ARGUMENT, "too small");
  // The caller's struct is newer than the library, which leaves fields that it does not know unchanged.
  struct {
    gpumem_statistics known;
    uint64_t newer;
  } newer;
  memset(&newer, 7, sizeof newer);
  newer.known.size = sizeof newer;
  EXPECT(gpumem_read_statistics(pool, &newer.known) == GPUMEM_GRANTED);
  EXPECT(newer.known.limit == 4 * MIB && newer.newer == 0x0707070707070707u);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static void what_a_pool_knows_of_a_pointer(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make(NULL);
  void* pointer = allocate(pool, stream, 1000);
  gpumem_block block = {sizeof block, NULL, 0, 0, 0, 0};
  EXPECT(gpumem_find(pool, (char*)pointer + 999, &block) == GPUMEM_GRANTED);
  EXPECT(block.base == pointer && block.bytes == 1000 && block.allocated == 1024 && block.live == 1 &&
         block.stream != 0);
  release(pool, stream, pointer, 1000);
  EXPECT(gpumem_find(pool, pointer, &block) == GPUMEM_GRANTED);
  EXPECT(block.base != NULL && block.bytes == 0 && block.live == 0);
  EXPECT(gpumem_find(pool, &pool, &block) == GPUMEM_GRANTED && block.base == NULL);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

// Another stream's memory is reused only after its last use; otherwise the simulated device reports it.
static void reuse_is_ordered(void) {
  void* first = simulated_stream(0);
  void* second = simulated_stream(0);
  gpumem_pool* pool = make("limit=4MiB");
  void* block = allocate(pool, first, 4 * MIB);
  simulated_order(first, second);
  simulated_write(second, block, 4 * MIB);
  EXPECT(gpumem_record_use(pool, block, second) == GPUMEM_GRANTED);
  simulated_use_recorded(second, block);
  release(pool, first, block, 4 * MIB);
  EXPECT(allocate(pool, first, 4 * MIB) == block);
  simulated_write(first, block, 4 * MIB);
  release(pool, first, block, 4 * MIB);
  EXPECT(statistics_of(pool).reserved == 4 * MIB);
  // The host counts as a stream too.
  simulated_run();
  EXPECT(gpumem_synchronize(pool, 1000000000) == GPUMEM_GRANTED);
  void* at_once = NULL;
  EXPECT(gpumem_allocate_sync(pool, MIB, GPUMEM_ALIGNMENT, &at_once) == GPUMEM_GRANTED && at_once);
  EXPECT(gpumem_free_sync(pool, at_once, MIB) == GPUMEM_GRANTED);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static gpumem_pool* shared_pool;

static void* use_shared_pool(void* context) {
  void* stream = simulated_stream(0);
  size_t const number = *(size_t*)context;
  for (size_t i = 0; i < 200; ++i) {
    size_t const bytes = (number + 1) * 1000 + i * 64;
    void* pointer = NULL;
    if (gpumem_allocate(shared_pool, stream, bytes, 256, &pointer) != GPUMEM_GRANTED) return context;
    simulated_allocated(stream, pointer, bytes);
    simulated_write(stream, pointer, bytes);
    simulated_freed(stream, pointer, bytes);
    if (gpumem_free_sized(shared_pool, stream, pointer, bytes) != GPUMEM_GRANTED) return context;
    // Each thread has its own last error.
    char sentence[32];
    snprintf(sentence, sizeof sentence, "not a size: '%zux'", bytes);
    char options[32];
    snprintf(options, sizeof options, "limit=%zux", bytes);
    gpumem_pool* none = NULL;
    if (gpumem_make_pool(0, options, &none) != GPUMEM_INVALID_ARGUMENT) return context;
    if (!strstr(gpumem_last_error(), sentence)) return context;
  }
  return gpumem_release(shared_pool) == GPUMEM_GRANTED ? NULL : context;
}

static void several_threads(void) {
  enum { threads = 4 };
  pthread_t running[threads];
  size_t numbers[threads];
  shared_pool = make("limit=64MiB");
  simulated_stream(0); // loads the driver before the threads start
  for (size_t i = 0; i < threads; ++i) {
    numbers[i] = i;
    EXPECT(gpumem_retain(shared_pool) == GPUMEM_GRANTED);
    EXPECT(pthread_create(&running[i], NULL, use_shared_pool, &numbers[i]) == 0);
  }
  for (size_t i = 0; i < threads; ++i) {
    void* failed = NULL;
    EXPECT(pthread_join(running[i], &failed) == 0 && !failed);
  }
  EXPECT(statistics_of(shared_pool).allocations == threads * 200);
  EXPECT(statistics_of(shared_pool).live == 0);
  EXPECT(gpumem_release(shared_pool) == GPUMEM_GRANTED);
}

// In a child the driver is unusable: allocations report that, frees do nothing.
static void a_forked_child(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make(NULL);
  void* block = allocate(pool, stream, 1000);
  pid_t const child = fork();
  if (child == 0) {
    void* pointer = NULL;
    int const refused = gpumem_allocate(pool, stream, 1, 1, &pointer) == GPUMEM_DEVICE_LOST && !pointer;
    int const waits = gpumem_acquire(pool, stream, 1, 1, 1000, &pointer) == GPUMEM_DEVICE_LOST;
    int const told = waits && strstr(gpumem_last_error(), "was forked") != NULL &&
                     gpumem_allocate_sync(pool, 1, 1, &pointer) == GPUMEM_DEVICE_LOST &&
                     gpumem_make_pool(0, NULL, &pool) == GPUMEM_DEVICE_LOST;
    int const freed = gpumem_free(pool, stream, block) == GPUMEM_GRANTED;
    size_t given_back = 1;
    int const trimmed = gpumem_trim(pool, 0, &given_back) == GPUMEM_GRANTED && given_back == 0;
    _exit(refused && told && freed && trimmed ? 0 : 1);
  }
  int status = 1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  EXPECT(statistics_of(pool).live == 1000);
  release(pool, stream, block, 1000);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

static test const tests[] = {
    {"a_pool_from_make_to_release", a_pool_from_make_to_release},
    {"pools_inside_a_stack_are_synchronized", pools_inside_a_stack_are_synchronized},
    {"bins_inside_a_stack_are_synchronized", bins_inside_a_stack_are_synchronized},
    {"blocks_are_freed_by_their_address_alone", blocks_are_freed_by_their_address_alone},
    {"sizes_as_people_write_them", sizes_as_people_write_them},
    {"options_that_are_refused", options_that_are_refused},
    {"nulls_are_refused", nulls_are_refused},
    {"misuse_is_an_outcome", misuse_is_an_outcome},
    {"no_memory_leaves_everything_as_it_was", no_memory_leaves_everything_as_it_was},
    {"a_capturing_stream_is_refused", a_capturing_stream_is_refused},
    {"structures_of_older_callers", structures_of_older_callers},
    {"what_a_pool_knows_of_a_pointer", what_a_pool_knows_of_a_pointer},
    {"reuse_is_ordered", reuse_is_ordered},
    {"several_threads", several_threads},
    {"a_forked_child", a_forked_child},
};

int main(int count, char** arguments) { return run_tests(tests, sizeof tests / sizeof *tests, count, arguments); }
