// A shared library with hidden symbols that uses a pool of the program. The test loads two of them.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool.hpp>

#include <cstddef>

#define SHOWN extern "C" __attribute__((visibility("default")))

SHOWN void* plugin_allocate(gpumem_pool* pool, CUstream_st* stream, std::size_t bytes) {
  return gpumem::pool::share(pool).allocate(stream, bytes); // may throw out_of_memory
}

SHOWN void plugin_free(gpumem_pool* pool, CUstream_st* stream, void* pointer, std::size_t bytes) {
  gpumem::pool::share(pool).deallocate(stream, pointer, bytes);
}
