#include <cstdio>
#include <utility>
#include <vector>
import gpumem;

gpumem::task<> batch(gpumem::pool_resource<gpumem::cuda_resource> pool, gpumem::stream& stream) {
  auto const block = co_await pool.acquire(stream, 48 << 20); // waits in line if the pool is full; no thread blocks
  gpumem::driver_api::driver().memset_d8_async(block.address(), 0, block.bytes(), stream.get());
  co_await gpumem::completion(stream); // the one wait for the GPU
} // the free lets the next batch go on

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.limit = 64 << 20}}; // room for one batch at a time
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 8; ++i) streams.emplace_back(card);
  std::vector<gpumem::task<>> all;
  for (auto& stream : streams) all.push_back(batch(pool, stream));
  gpumem::sync_wait(gpumem::when_all(std::move(all)));
  std::printf("8 batches of 48 MiB in %zu MiB\n", pool.statistics().peak_reserved >> 20);
}
