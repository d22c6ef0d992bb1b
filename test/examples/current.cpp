#include <cstddef>
#include <cstdio>
import gpumem;

// A library that is compiled once takes the device's current resource, or one that its caller passes.
std::byte last_byte(gpumem::any_pool memory) {
  gpumem::stream stream{gpumem::device{0}};
  gpumem::buffer bytes{stream, memory, 1 << 20};
  bytes.fill(std::byte{7});
  std::byte last{};
  bytes.read(&last, 1, (1 << 20) - 1);
  return last;
}

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.limit = std::size_t{8} << 30}};
  gpumem::set_current_resource(card, gpumem::any_pool{pool});
  auto const read = last_byte(gpumem::current_resource(card));
  std::printf("read %d, %lu allocation of the pool\n", static_cast<int>(read), pool.statistics().allocations);
}
