#include <cstdio>
import gpumem;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.limit = 64 << 20}}; // room for one block, not for two
  gpumem::stream a{card}, b{card};
  void* const block = pool.allocate(a, 48 << 20);
  // … work on `a` uses the block …
  pool.deallocate(a, block, 48 << 20); // `a` may have the memory again at once

  gpumem::event freed{card};
  freed.record(a);
  freed.make_wait(b); // from here on `b` may have it too: its work comes after the free
  void* const again = pool.allocate(b, 48 << 20);
  pool.deallocate(b, again, 48 << 20);

  auto const seen = pool.statistics();
  std::printf("reserved %zu MiB, reused in a known order: %lu\n", seen.reserved >> 20, seen.reuse_ordered);
}
