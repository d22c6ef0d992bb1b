#include <cstdio>
#include <cuda_runtime_api.h>
import gpumem;

int main() {
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = std::size_t{8} << 30}};
  gpumem::stream stream{gpumem::device{0}};
  void* const block = pool.allocate(stream, 64 << 20); // work that `stream` is given from here on may use it
  cudaMemsetAsync(block, 0, 64 << 20, stream.get());   // or a kernel on `stream`
  pool.deallocate(stream, block, 64 << 20);            // waits for nothing: the memory is reused in stream order
  std::printf("reserved: %zu bytes\n", pool.statistics().reserved);
}
