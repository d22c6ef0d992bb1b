#include <cstdio>
#include <thread>
import gpumem;

gpumem::task<std::thread::id> use(auto pool, gpumem::stream& stream, gpumem::executor& worker) {
  auto const block = co_await pool.acquire(stream, 1 << 20, {.resume_on = &worker});
  gpumem::driver_api::driver().memset_d8_async(block.address(), 0, block.bytes(), stream.get());
  co_await gpumem::completion(stream, {.latency = gpumem::latency::low, .resume_on = &worker});
  co_return std::this_thread::get_id(); // the worker's thread if one of the two had to wait, otherwise the caller's
}

int main() {
  gpumem::pool_resource pool{gpumem::device{0}};
  gpumem::stream stream{gpumem::device{0}};
  gpumem::thread_executor worker;
  auto const resumed_on = gpumem::sync_wait(use(pool, stream, worker));
  std::printf("went on upon %s thread\n", resumed_on == std::this_thread::get_id() ? "the same" : "the worker's");
}
