#include <cstdio>
import gpumem;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.name = "training"}};
  gpumem::statistics_adaptor counted{pool};
  gpumem::stream stream{card};

  counted.push_counters(); // of this step alone
  auto block = counted.acquire(stream, 3 << 20).wait();
  auto const step = counted.pop_counters();
  std::printf("the step: %ld bytes now, %ld at the peak\n", step.bytes.value, step.bytes.peak);

  auto const seen = pool.statistics();
  std::printf("the pool: %zu live, %zu reserved, %lu requests failed\n", seen.live, seen.reserved, seen.failures);
  std::printf("%s", pool.describe_memory().c_str());
}
