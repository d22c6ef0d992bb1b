#include <cstdio>
#include <vector>
import gpumem;
using namespace gpumem::literals;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.limit = 256_MiB}};
  gpumem::stream stream{card};
  std::vector<gpumem::allocation> cache; // could be computed again
  for (int i = 0; i < 3; ++i) cache.push_back(pool.acquire(stream, 64_MiB).wait());

  gpumem::thread_executor worker;
  auto const spiller = pool.on_pressure(worker, [&](std::size_t wanted) {
    std::size_t freed = 0;
    for (; freed < wanted && !cache.empty(); cache.pop_back()) freed += cache.back().bytes();
    return freed;
  });
  {
    auto const block = pool.acquire(stream, 150_MiB).wait(); // waits until the function has freed enough
    std::printf("granted %zu MiB\n", block.bytes() >> 20);
  }
} // the spiller goes first: after that the function does not run any more
