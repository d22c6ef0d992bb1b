#include <cstdio>
import gpumem;
using namespace gpumem::literals;

int main() {
  gpumem::device const card{0};
  gpumem::prefetch_adaptor pool{gpumem::pool_resource{gpumem::managed_resource{card}}};
  gpumem::stream stream{card};

  gpumem::allocation const block = pool.acquire(stream, 2_MiB).wait(); // moved to the card in the order of `stream`
  gpumem::driver_api::driver().memset_d8_async(block.address(), 7, block.bytes(), stream.get());
  gpumem::prefetch(block.data(), block.bytes(), gpumem::memory_location::host(), stream);
  stream.synchronize();
  std::printf("the host reads %d; %lu prefetches of blocks\n", block.as<char>()[0], pool.prefetches());
}
