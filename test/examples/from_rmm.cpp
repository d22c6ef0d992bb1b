#include <cstddef>
#include <cstdio>
import gpumem;
using namespace gpumem::literals;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.initial_size = 64_MiB, .limit = 4_GiB}};
  gpumem::statistics_adaptor counted{pool};
  gpumem::set_current_resource(card, gpumem::any_pool{counted});
  gpumem::stream stream{card};
  {
    gpumem::buffer bytes{stream, 1_MiB}; // of the current resource
    bytes.fill(std::byte{1});
    gpumem::uninitialized_vector<float> values{stream, pool, 1000}; // of one that is named
    values.set_element(7, 2.5F);
    gpumem::scalar<int> const answer{stream, pool, 42};
    if (values.element(7) != 2.5F || answer.value() != 42) return 1;
  } // freed in the order of the stream
  stream.synchronize();
  auto const seen = counted.counters();
  auto const returned = pool.trim(); // RMM's pool keeps its memory until its end
  std::printf("%zu allocation, peak %s, returned %s\n", static_cast<std::size_t>(seen.allocations.total),
              gpumem::format_bytes(static_cast<std::size_t>(seen.bytes.peak)).c_str(),
              gpumem::format_bytes(returned).c_str());
}
