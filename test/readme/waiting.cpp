#include <cstdio>
import gpumem;

gpumem::task<std::size_t> job(auto& pool) {
  gpumem::stream stream{gpumem::device{0}};
  auto block = co_await pool.acquire(stream, 60 << 20); // waits in line if there is no memory; no thread blocks
  gpumem::driver().memset_d8_async(block.address(), 0, block.bytes(), stream.get());
  co_await gpumem::completion(stream);
  co_return block.bytes();
} // the free lets the next job go on

int main() {
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = 100 << 20}};
  auto const [a, b, c] = gpumem::sync_wait(gpumem::when_all(job(pool), job(pool), job(pool)));
  std::printf("%zu bytes used under a limit of %zu\n", a + b + c, pool.figures().limit);
}
