#include <chrono>
#include <cstdio>
import gpumem;
using namespace gpumem::literals;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.initial_size = 64_MiB, .effort = .1}};
  gpumem::stream stream{card};
  pool.reserve(256_MiB); // now, so that the first requests need not
  auto const ready = pool.statistics().reserved;

  pool.deallocate(stream, pool.allocate(stream, 100_MiB), 100_MiB);
  stream.synchronize();
  pool.synchronize(std::chrono::seconds{1}); // the host has seen that all uses are complete
  auto const returned = pool.trim(32_MiB);   // unused pages go back to the card; 32 MiB stay
  std::printf("reserved %s, returned %s\n", gpumem::format_bytes(ready).c_str(),
              gpumem::format_bytes(returned).c_str());
}
