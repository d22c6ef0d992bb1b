// Graph memory, as a C program that captures CUDA graphs uses it.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/graph_memory.h>

#include <stdint.h>
#include <string.h>

#include "checks.h"

static gpumem_outcome const wrong = GPUMEM_INVALID_ARGUMENT;

static gpumem_graph_memory* make_memory(gpumem_pool* pool) {
  gpumem_graph_memory* memory = NULL;
  EXPECT(gpumem_graph_memory_make(pool, &memory) == GPUMEM_GRANTED);
  return memory;
}

static gpumem_capture_scope* open_scope(gpumem_graph_memory* memory, void* stream) {
  gpumem_capture_scope* scope = NULL;
  EXPECT(gpumem_graph_memory_capture(memory, stream, &scope) == GPUMEM_GRANTED);
  return scope;
}

static size_t bytes_of(gpumem_graph_memory* memory) {
  size_t bytes = 0;
  EXPECT(gpumem_graph_memory_bytes(memory, &bytes) == GPUMEM_GRANTED);
  return bytes;
}

// The simulated device is not told of these blocks: their memory is used again before the graph runs.
static void* allocate_untold(gpumem_pool* pool, void* stream, size_t bytes) {
  void* pointer = NULL;
  EXPECT(gpumem_allocate(pool, stream, bytes, GPUMEM_ALIGNMENT, &pointer) == GPUMEM_GRANTED);
  return pointer;
}

static void end(gpumem_pool* pool, gpumem_graph_memory* memory) {
  EXPECT(gpumem_graph_memory_free(memory) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).live == 0);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
}

// Layers of a network, whose temporary blocks are freed in reverse order.
static void* capture_layers(gpumem_pool* pool, gpumem_graph_memory* memory, void* stream, int layers) {
  gpumem_capture_scope* scope = open_scope(memory, stream);
  simulated_begin_capture(stream);
  void* first = NULL;
  for (int i = 0; i < layers; ++i) {
    void* large = allocate_untold(pool, stream, 3 * MIB);
    void* small = allocate_untold(pool, stream, 1000);
    if (!first) first = large;
    EXPECT(large == first && small != large);
    simulated_write(stream, large, 3 * MIB);
    simulated_write(stream, small, 1000);
    EXPECT(gpumem_free_sized(pool, stream, small, 1000) == GPUMEM_GRANTED);
    EXPECT(gpumem_free_sized(pool, stream, large, 3 * MIB) == GPUMEM_GRANTED);
  }
  void* graph = simulated_captured(stream);
  EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
  return graph;
}

static void graphs_keep_their_temporary_blocks(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("");
  gpumem_graph_memory* memory = make_memory(pool);
  EXPECT(bytes_of(memory) == 0);
  void* graph = capture_layers(pool, memory, stream, 4);
  size_t const kept = bytes_of(memory);
  EXPECT(kept >= 3 * MIB + 1000 && kept <= 6 * MIB && statistics_of(pool).live == kept);
  for (int i = 0; i < 3; ++i) {
    simulated_launch(graph, stream);
    void* between = allocate(pool, stream, 3 * MIB);
    simulated_write(stream, between, 3 * MIB);
    release(pool, stream, between, 3 * MIB);
  }
  EXPECT(gpumem_trim(pool, 0, &(size_t){0}) == GPUMEM_GRANTED);
  simulated_launch(graph, stream);
  void* again = capture_layers(pool, memory, stream, 8); // as for an update of the graph
  EXPECT(bytes_of(memory) == kept);
  simulated_launch(again, stream);
  simulated_launch(graph, stream); // any order: no graph reads what another one has left
  simulated_launch(again, stream);
  simulated_synchronize(stream);
  simulated_destroy_graph(graph);
  simulated_destroy_graph(again);
  end(pool, memory);
}

static void blocks_stay_until_they_are_freed(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("");
  gpumem_graph_memory* memory = make_memory(pool);
  void* before = allocate_untold(pool, stream, 1000);
  simulated_write(stream, before, 1000);
  gpumem_capture_scope* scope = open_scope(memory, stream);
  simulated_begin_capture(stream);
  void* result = allocate_untold(pool, stream, 1000);
  void* temporary = allocate_untold(pool, stream, 1000);
  simulated_write(stream, temporary, 1000);
  simulated_write(stream, result, 1000);
  EXPECT(gpumem_free(pool, stream, temporary) == GPUMEM_GRANTED);
  EXPECT(gpumem_free(pool, stream, before) == GPUMEM_GRANTED);
  EXPECT(allocate_untold(pool, stream, 1000) == temporary);
  EXPECT(gpumem_free(pool, stream, temporary) == GPUMEM_GRANTED);
  void* graph = simulated_captured(stream);
  EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
  EXPECT(allocate_untold(pool, stream, 1000) == before); // completes the free
  EXPECT(gpumem_free(pool, stream, before) == GPUMEM_GRANTED);

  gpumem_block found = {.size = sizeof found};
  EXPECT(gpumem_find(pool, result, &found) == GPUMEM_GRANTED && found.base == result && found.bytes == 1000);
  gpumem_pool* owner = NULL;
  EXPECT(gpumem_pool_of(result, &owner) == GPUMEM_GRANTED && owner == pool);
  simulated_launch(graph, stream);
  simulated_launch(graph, stream);
  scope = open_scope(memory, stream);
  simulated_begin_capture(stream);
  void* other = allocate_untold(pool, stream, 1000);
  EXPECT(other == temporary && other != result);
  EXPECT(gpumem_free(pool, stream, other) == GPUMEM_GRANTED);
  EXPECT(gpumem_free_pointer(result) == GPUMEM_GRANTED);
  EXPECT_REFUSED(gpumem_free(pool, stream, result), wrong, "a double free");
  simulated_destroy_graph(simulated_captured(stream));
  EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
  simulated_synchronize(stream);
  simulated_destroy_graph(graph);
  end(pool, memory);
}

static void* capture_two_streams(gpumem_pool* pool, gpumem_graph_memory* memory, void* stream, void* side) {
  gpumem_capture_scope* scope = open_scope(memory, stream);
  simulated_begin_capture(stream);
  void* first = allocate_untold(pool, stream, 1000);
  simulated_write(stream, first, 1000);
  EXPECT(gpumem_free(pool, stream, first) == GPUMEM_GRANTED);
  simulated_order(stream, side);
  void* ordered = allocate_untold(pool, side, 1000);
  EXPECT(ordered == first);
  simulated_write(side, ordered, 1000);
  void* beside = allocate_untold(pool, stream, 1000);
  EXPECT(beside != ordered);
  simulated_write(stream, beside, 1000);
  EXPECT(gpumem_record_use(pool, beside, side) == GPUMEM_GRANTED);
  EXPECT(gpumem_free(pool, side, ordered) == GPUMEM_GRANTED);
  simulated_order(side, stream);
  EXPECT(gpumem_free(pool, stream, beside) == GPUMEM_GRANTED);
  void* graph = simulated_captured(stream);
  EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
  return graph;
}

// No graph reads what another one has left, so they are launched in another order than that of their captures.
static void streams_of_a_capture_share_in_its_order(void) {
  void* streams[] = {simulated_stream(0), simulated_stream(0)};
  gpumem_pool* pool = make("");
  gpumem_graph_memory* memory = make_memory(pool);
  void* graphs[] = {capture_two_streams(pool, memory, streams[0], streams[1]),
                    capture_two_streams(pool, memory, streams[1], streams[0])};
  EXPECT(bytes_of(memory) == 2 * MIB);
  for (int i = 0; i < 6; ++i) simulated_launch(graphs[i % 3 == 0], streams[0]);
  simulated_synchronize(streams[0]);
  for (int i = 0; i < 2; ++i) simulated_destroy_graph(graphs[i]);
  end(pool, memory);
}

static void scopes_and_blocks_outlive_the_graph_memory(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("");
  gpumem_graph_memory* memory = make_memory(pool);
  gpumem_capture_scope* scope = open_scope(memory, stream);
  EXPECT(gpumem_graph_memory_free(memory) == GPUMEM_GRANTED);
  simulated_begin_capture(stream);
  void* block = allocate_untold(pool, stream, 1000);
  simulated_destroy_graph(simulated_captured(stream));
  EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).live == 2 * MIB);
  EXPECT(gpumem_free(pool, stream, block) == GPUMEM_GRANTED);
  EXPECT(statistics_of(pool).live == 0);
  memory = make_memory(pool);
  EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  EXPECT(bytes_of(memory) == 0);
  EXPECT(gpumem_graph_memory_free(memory) == GPUMEM_GRANTED);
}

static void captures_fail_without_a_scope_or_memory(void) {
  void* stream = simulated_stream(0);
  gpumem_pool* pool = make("limit=8MiB");
  gpumem_graph_memory* memory = make_memory(pool);
  void* pointer = NULL;
  gpumem_capture_scope* scope = open_scope(memory, stream);
  simulated_begin_capture(stream);
  EXPECT_REFUSED(gpumem_allocate(pool, stream, 8 * MIB, GPUMEM_ALIGNMENT, &pointer), GPUMEM_TOO_LARGE, "too_large");
  void* block = allocate_untold(pool, stream, 5 * MIB);
  EXPECT_REFUSED(gpumem_allocate(pool, stream, 5 * MIB, GPUMEM_ALIGNMENT, &pointer), GPUMEM_EXHAUSTED, "exhausted");
  EXPECT_REFUSED(gpumem_acquire(pool, stream, 5 * MIB, GPUMEM_ALIGNMENT, UINT64_MAX, &pointer), GPUMEM_EXHAUSTED,
                 "exhausted");
  EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
  EXPECT_REFUSED(gpumem_allocate(pool, stream, 1, GPUMEM_ALIGNMENT, &pointer), GPUMEM_CAPTURE_UNSUPPORTED,
                 "capture_unsupported");
  EXPECT(pointer == NULL);
  EXPECT(gpumem_free(pool, stream, block) == GPUMEM_GRANTED);
  simulated_destroy_graph(simulated_captured(stream));
  end(pool, memory);
}

static void wrong_calls_are_refused(void) {
  void* stream = simulated_stream(0);
  void* elsewhere = simulated_stream(1);
  simulated_make_current(0);
  gpumem_pool* pool = make("");
  gpumem_graph_memory* memory = NULL;
  gpumem_capture_scope* none = NULL;
  EXPECT_REFUSED(gpumem_graph_memory_make(NULL, &memory), wrong, "the pool is NULL");
  EXPECT_REFUSED(gpumem_graph_memory_make(pool, NULL), wrong, "the out-pointer is NULL");
  EXPECT(memory == NULL);
  memory = make_memory(pool);
  EXPECT_REFUSED(gpumem_graph_memory_capture(NULL, stream, &none), wrong, "the graph memory is NULL");
  EXPECT_REFUSED(gpumem_graph_memory_capture(memory, stream, NULL), wrong, "the out-pointer is NULL");
  EXPECT_REFUSED(gpumem_graph_memory_capture(memory, NULL, &none), wrong, "a stream that can capture");
  EXPECT_REFUSED(gpumem_graph_memory_capture(memory, GPUMEM_STREAM_LEGACY, &none), wrong, "a stream that can capture");
  gpumem_capture_scope* scope = open_scope(memory, stream);
  EXPECT_REFUSED(gpumem_graph_memory_capture(memory, stream, &none), wrong, "already has a capture scope");
  EXPECT(none == NULL);
  EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
  EXPECT(gpumem_capture_scope_end(open_scope(memory, stream)) == GPUMEM_GRANTED);
  EXPECT(gpumem_capture_scope_end(open_scope(memory, GPUMEM_STREAM_PER_THREAD)) == GPUMEM_GRANTED);
  scope = open_scope(memory, elsewhere);
  simulated_begin_capture(elsewhere);
  void* pointer = NULL;
  EXPECT_REFUSED(gpumem_allocate(pool, elsewhere, 1, 1, &pointer), wrong, "device");
  simulated_destroy_graph(simulated_captured(elsewhere));
  EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
  size_t bytes = 1;
  EXPECT_REFUSED(gpumem_graph_memory_bytes(NULL, &bytes), wrong, "the graph memory is NULL");
  EXPECT_REFUSED(gpumem_graph_memory_bytes(memory, NULL), wrong, "the out-pointer is NULL");
  EXPECT(bytes == 1);
  EXPECT(gpumem_graph_memory_free(NULL) == GPUMEM_GRANTED);
  EXPECT(gpumem_capture_scope_end(NULL) == GPUMEM_GRANTED);
  end(pool, memory);
}

static void each_pool_serves_captures(void) {
  void* stream = simulated_stream(0);
  char const* const pools[] = {"pages=off",           "hardened=on",
                               "shard_per_thread=on", "fixed(block_size=4MiB)",
                               "arena(async)",        "statistics(pool(async))",
                               "tracking(pool)"};
  for (size_t i = 0; i < sizeof pools / sizeof *pools; ++i) {
    gpumem_pool* pool = make(pools[i]);
    gpumem_graph_memory* memory = make_memory(pool);
    gpumem_capture_scope* scope = open_scope(memory, stream);
    simulated_begin_capture(stream);
    void* block = allocate_untold(pool, stream, 1000);
    simulated_write(stream, block, 1000);
    EXPECT(gpumem_free(pool, stream, block) == GPUMEM_GRANTED);
    void* graph = simulated_captured(stream);
    EXPECT(gpumem_capture_scope_end(scope) == GPUMEM_GRANTED);
    EXPECT(bytes_of(memory) >= 1000);
    simulated_launch(graph, stream);
    simulated_synchronize(stream);
    simulated_destroy_graph(graph);
    EXPECT(gpumem_graph_memory_free(memory) == GPUMEM_GRANTED);
    EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  }
  char const* const others[] = {"cuda", "limiting(pool,limit=1GiB)", "binning(pool)"};
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    gpumem_pool* pool = make(others[i]);
    gpumem_graph_memory* memory = NULL;
    EXPECT_REFUSED(gpumem_graph_memory_make(pool, &memory), wrong, "only a pool, fixed or arena serves captures");
    EXPECT(gpumem_release(pool) == GPUMEM_GRANTED);
  }
}

static test const tests[] = {
    {"graphs_keep_their_temporary_blocks", graphs_keep_their_temporary_blocks},
    {"blocks_stay_until_they_are_freed", blocks_stay_until_they_are_freed},
    {"streams_of_a_capture_share_in_its_order", streams_of_a_capture_share_in_its_order},
    {"scopes_and_blocks_outlive_the_graph_memory", scopes_and_blocks_outlive_the_graph_memory},
    {"captures_fail_without_a_scope_or_memory", captures_fail_without_a_scope_or_memory},
    {"wrong_calls_are_refused", wrong_calls_are_refused},
    {"each_pool_serves_captures", each_pool_serves_captures},
};

int main(int count, char** arguments) { return run_tests(tests, sizeof tests / sizeof *tests, count, arguments); }
