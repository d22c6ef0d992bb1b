// A program with one error of memory, which its first argument names. compute-sanitizer must find it in pools that pass
// through. The second argument has the options of the pool.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem.h>

#include <cstdio>
#include <cstring>

namespace {

__global__ void write_byte(char* block, std::size_t at) { block[at] = 1; }

int fail(char const* what) {
  std::fprintf(stderr, "%s: %s\n", what, gpumem_last_error());
  return 2;
}

} // namespace

int main(int count, char** values) {
  char const* const error = count > 1 ? values[1] : "none";
  char const* const options = count > 2 ? values[2] : "limit=1GiB";
  constexpr std::size_t bytes = 1000;
  gpumem_pool* pool = nullptr;
  cudaStream_t stream = nullptr, other = nullptr;
  void* block = nullptr;
  if (cudaStreamCreate(&stream) != cudaSuccess || cudaStreamCreate(&other) != cudaSuccess)
    return fail("cudaStreamCreate");
  if (gpumem_make_pool(0, options, &pool) != GPUMEM_GRANTED) return fail("gpumem_make_pool");
  if (gpumem_allocate(pool, stream, bytes, GPUMEM_ALIGNMENT, &block) != GPUMEM_GRANTED) return fail("gpumem_allocate");
  auto* const first = static_cast<char*>(block);
  write_byte<<<1, 1, 0, stream>>>(first, std::strcmp(error, "overrun") == 0 ? bytes : bytes - 1);
  if (std::strcmp(error, "unordered") == 0)
    write_byte<<<1, 1, 0, other>>>(first, 0); // no event orders the free after it
  if (gpumem_free(pool, stream, block) != GPUMEM_GRANTED) return fail("gpumem_free");
  if (std::strcmp(error, "after_free") == 0) write_byte<<<1, 1, 0, stream>>>(first, 0);
  if (cudaStreamSynchronize(stream) != cudaSuccess || cudaStreamSynchronize(other) != cudaSuccess)
    return 1; // the sanitizer ends kernels that fail
  return gpumem_release(pool) == GPUMEM_GRANTED ? 0 : fail("gpumem_release");
}
