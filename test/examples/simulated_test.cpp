#include <cstdio>
#include <gpumem/simulator.hpp>
import gpumem;
namespace simulator = gpumem::simulator;

// The code under test. It works over any resource.
void run(auto& pool, gpumem::stream& upload, gpumem::stream& compute, bool ordered) {
  void* const block = pool.allocate(upload, 1 << 20);
  simulator::work(upload, {simulator::write(block, 1 << 20)}); // stands for a kernel
  if (ordered) {
    gpumem::event written{gpumem::device{0}};
    written.record(upload);
    written.make_wait(compute);
  }
  simulator::work(compute, {simulator::read(block, 1 << 20)});
  pool.deallocate(compute, block, 1 << 20);
}

int main() {
  simulator::load({.seed = 7}); // in place of a driver; before the first CUDA call
  gpumem::stream upload{gpumem::device{0}}, compute{gpumem::device{0}};
  for (bool const ordered : {true, false}) {
    simulator::checked pool{gpumem::pool_resource{gpumem::device{0}}};
    run(pool, upload, compute, ordered);
    upload.synchronize();
    compute.synchronize();
    auto const found = simulator::take_findings();
    std::printf("%s: %zu findings\n", ordered ? "ordered" : "not ordered", found.size());
    for (auto const& each : found) std::printf("  %s\n", each.text.c_str());
  }
}
