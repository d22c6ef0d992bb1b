#include <cstdio>
import gpumem;

int main() {
  gpumem::pool_resource pool{gpumem::device{0}}; // copies are the same pool
  gpumem::stream stream{gpumem::device{0}};
  void* const block = pool.allocate(stream, 1 << 20); // work that `stream` is given from now on may use it
  // … enqueue copies and kernels on `stream` …
  pool.deallocate(stream, block, 1 << 20); // does not wait for them: the memory is reused in their order
  auto const seen = pool.statistics();
  std::printf("freed %zu bytes, reserved: %zu\n", seen.peak_live, seen.reserved);
}
