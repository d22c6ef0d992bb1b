#include <cstdio>
import gpumem;

gpumem::task<std::size_t> work(auto& pool, gpumem::stream& upload, gpumem::stream& compute) {
  auto block = co_await pool.acquire(upload, 64 << 20); // valid in the order of `upload`; no wait for the GPU
  gpumem::driver_api::driver().memset_d8_async(block.address(), 0, block.bytes(), upload.get());
  {
    auto use = block.use_on(compute); // `compute` waits for `upload`; at the brace `upload` waits for `compute`
    gpumem::driver_api::driver().memset_d8_async(block.address(), 1, block.bytes(), compute.get());
  }
  co_await gpumem::completion(compute); // the one wait for the GPU; no thread blocks
  co_return block.bytes();
} // freed in stream order

int main() {
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = std::size_t{8} << 30}};
  gpumem::stream upload{gpumem::device{0}}, compute{gpumem::device{0}};
  auto const bytes = gpumem::sync_wait(work(pool, upload, compute));
  std::printf("%zu bytes used, %zu reserved\n", bytes, pool.statistics().reserved);
}
