#include <cstdio>
import gpumem;
using namespace gpumem::literals;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.limit = 1_GiB}};
  gpumem::limiting_adaptor training{pool, {.limit = 768_MiB}}; // both draw from one pool:
  gpumem::limiting_adaptor serving{pool, {.limit = 384_MiB}};  // the sum may be more than its limit
  gpumem::stream stream{card};

  auto const weights = training.acquire(stream, 700_MiB).wait();
  auto const refused = training.try_allocate(stream, 100_MiB); // beyond its own share
  std::printf("training: %s\n", gpumem::to_string(refused.error().reason));

  gpumem::scope request{serving, "request 17"}; // names a unit of work, and serves older work first
  auto const cache = request.acquire(stream, 200_MiB).wait();
  std::printf("%s\n", pool.describe_waiting().c_str());
  std::printf("training %zu MiB, serving %zu MiB\n", training.in_use() >> 20, serving.in_use() >> 20);
}
