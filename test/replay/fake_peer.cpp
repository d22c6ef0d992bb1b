// A peer that allocates host memory, and one that cannot be made.
// SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <cstddef>
#include <cstdlib>
#include <iterator>

#include <cuda.h>

namespace {

void* make(int) { return std::malloc(1); }
void* make_nothing(int) { return nullptr; }
void destroy(void* self) { std::free(self); }
void* allocate(void*, std::size_t bytes, CUstream) { return std::malloc(bytes); }
void deallocate(void*, void* pointer, std::size_t, CUstream) { std::free(pointer); }
std::size_t peak_reserved(void*) { return std::size_t{4} << 20; }

constexpr gpumem_peer peers[] = {{"fake", make, destroy, allocate, deallocate, peak_reserved},
                                 {"absent", make_nothing, destroy, allocate, deallocate, peak_reserved}};

} // namespace

gpumem_peer const* gpumem_bench_peers(std::size_t* count) {
  *count = std::size(peers);
  return peers;
}
