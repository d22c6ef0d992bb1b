#include <gpumem/simulator.hpp>
import gpumem;

int main() {
  gpumem::simulator::load({.seed = 7}); // before the first CUDA call; no GPU, no driver
  gpumem::simulator::checked pool{gpumem::pool_resource{gpumem::device{0}}};
  gpumem::stream a{gpumem::device{0}}, b{gpumem::device{0}};
  void* block = pool.allocate(a, 1 << 20);
  gpumem::simulator::work(b, {gpumem::simulator::write(block, 1 << 20)}); // b was never ordered after a
  b.synchronize();
  pool.deallocate(a, block, 1 << 20); // in order: the host has waited for b
} // prints which streams, which block and which order is missing, and exits with a failure
