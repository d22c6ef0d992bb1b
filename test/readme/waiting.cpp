#include <array>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <string>
#include <utility>
#include <vector>
import gpumem;

gpumem::task<> batch(auto work, gpumem::stream& stream, std::size_t bytes) {
  std::array<gpumem::allocation, 3> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = co_await work.acquire(stream, bytes / 10 * std::array{4, 3, 3}[i]); // waits in line; no thread blocks
    cudaMemsetAsync(parts[i].data(), 0, parts[i].bytes(), stream.get());
    co_await gpumem::completion(stream);
  }
} // the frees let other batches go on

int main() {
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = 256 << 20}};
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 64; ++i) streams.emplace_back(gpumem::device{0});
  std::vector<gpumem::task<>> all;
  for (auto& stream : streams) {
    gpumem::scope work{pool, "batch " + std::to_string(all.size())};
    auto const body = [work, &stream] { return batch(work, stream, 16 << 20); };
    all.push_back(gpumem::with_retry(work, body, [] {})); // runs again if it had to give way to an older batch
  }
  gpumem::sync_wait(gpumem::when_all(std::move(all)));
  std::printf("64 batches of 16 MiB under a limit of %zu MiB\n", pool.statistics().limit >> 20);
}
