#include <cstdio>
#include <gpumem/simulator.hpp>
import gpumem;

int main() {
  gpumem::simulator::load(); // a simulated device; without this line and gpumem::simulator, the GPU
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = 64 << 20}};
  gpumem::stream stream{gpumem::device{0}};
  void* const block = pool.allocate(stream, 1 << 20);
  pool.deallocate(stream, block, 1 << 20);
  std::printf("%zu bytes reserved\n", pool.statistics().reserved);
}
