/* What a bench asks of an allocator of another library: a table of functions in a shared library of its own, plain C,
 * so that a peer can be built with another compiler and another CCCL than gpumem's.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUMEM_BENCH_PEER_H
#define GPUMEM_BENCH_PEER_H
#include <cuda.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

/** One allocator. Its functions throw nothing; `self` is what `make` gave. */
struct gpumem_peer {
  char const* name;
  void* (*make)(int device); /**< null: it cannot be had */
  void (*destroy)(void* self);
  void* (*allocate)(void* self, size_t bytes, CUstream stream); /**< null: no memory */
  void (*deallocate)(void* self, void* pointer, size_t bytes, CUstream stream);
  size_t (*peak_reserved)(void* self); /**< most bytes held of the device since `make` */
};

/** What a peer's library exports: its table, and how many are in it. */
__attribute__((visibility("default"))) struct gpumem_peer const* gpumem_bench_peers(size_t* count);

#ifdef __cplusplus
}
#endif
#endif
