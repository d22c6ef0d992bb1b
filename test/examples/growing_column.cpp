#include <cstdio>
#include <cuda.h>
import gpumem;
import gpumem.growable;
using namespace gpumem::literals;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card};
  gpumem::stream stream{card};
  gpumem::growable_buffer column{pool, stream, {.reserve = 16_GiB, .name = "prices"}};
  float* const first = column.as<float>().data(); // never changes, so kernels and graphs may keep it

  std::size_t rows = 0;
  for (int batch = 0; batch < 100; ++batch) {
    rows += 1'000'000;
    column.resize(stream, rows * sizeof(float)); // maps pages beside running kernels; copies nothing
    // … enqueue the kernel that appends the batch at `first` on `stream` …
  }
  std::printf("%zu MiB of rows, %zu MiB mapped\n", column.bytes() >> 20, column.mapped_bytes() >> 20);

  column.shrink_to(stream, 1'000 * sizeof(float));
  std::printf("%s address, %zu MiB mapped\n", column.data() == first ? "the same" : "another",
              column.mapped_bytes() >> 20);
}
