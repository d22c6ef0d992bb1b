#include <cstdio>
import gpumem;
using namespace gpumem::literals;

int main() {
  gpumem::device const card{0};
  gpumem::fallback_adaptor memory{gpumem::pool_resource{card, {.limit = 64_MiB}},
                                  gpumem::pool_resource{gpumem::managed_resource{card}}};
  gpumem::stream stream{card};
  auto const fast = memory.acquire(stream, 48_MiB).wait();  // memory of the card
  auto const large = memory.acquire(stream, 96_MiB).wait(); // managed memory: the pool has no room for it
  std::printf("%lu block is managed\n", memory.fallbacks());
}
