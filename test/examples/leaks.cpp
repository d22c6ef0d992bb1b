#include <cstdio>
import gpumem;

int main() {
  gpumem::device const card{0};
  gpumem::tracking_adaptor pool{gpumem::pool_resource{card}, {.stack_depth = 0}}; // more than 0: with stack traces
  gpumem::stream stream{card};
  void* leaked = nullptr;
  {
    gpumem::tracking_label const label{"embedding table"};
    leaked = pool.allocate(stream, 4096);
  }
  std::printf("%s", pool.report().c_str());
  pool.deallocate(stream, leaked, 4096);
  std::printf("%zu blocks live\n", pool.outstanding().size());
}
