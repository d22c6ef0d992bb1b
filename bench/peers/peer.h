/* The interface of an allocator that is compared with gpumem: a table of functions that a shared library exports. It is
 * plain C, so that a peer can be built with another compiler and another CCCL than gpumem's.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUMEM_BENCH_PEER_H
#define GPUMEM_BENCH_PEER_H
#include <cuda.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

/** One allocator. Its functions never throw; `self` is the result of `make`. */
struct gpumem_peer {
  char const* name;
  void* (*make)(int device); /**< null: not available on this device */
  void (*destroy)(void* self);
  void* (*allocate)(void* self, size_t bytes, CUstream stream); /**< null: no memory */
  void (*deallocate)(void* self, void* pointer, size_t bytes, CUstream stream);
  size_t (*peak_reserved)(void* self); /**< the most bytes reserved from the device since `make` */
};

/** Exported by the shared library: returns its allocators, and their number in `count`. */
__attribute__((visibility("default"))) struct gpumem_peer const* gpumem_bench_peers(size_t* count);

#ifdef __cplusplus
}
#endif
#endif
