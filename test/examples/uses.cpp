#include <cstdio>
import gpumem;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card};
  gpumem::stream upload{card}, compute{card};
  auto& driver = gpumem::driver_api::driver();

  gpumem::allocation block = pool.acquire(upload, 1 << 20).wait();
  driver.memset_d8_async(block.address(), 0, block.bytes(), upload.get());
  {
    auto const use = block.use_on(compute); // `compute` waits for `upload` now
    driver.memset_d8_async(block.address(), 1, block.bytes(), compute.get());
  } // `upload` waits for `compute` from here on
  block.reset(); // freed in the order of `upload`, and so after the work of both

  void* const raw = pool.allocate(upload, 1 << 20);
  gpumem::event ready{card};
  ready.record(upload);
  ready.make_wait(compute);
  // … the last work on `compute` that uses the block …
  pool.record_use(raw, compute); // `upload` need not wait for `compute`, the reuse of the memory will
  pool.deallocate(upload, raw, 1 << 20);
  std::printf("live: %zu bytes\n", pool.statistics().live);
}
