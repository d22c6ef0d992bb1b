#include <cstdio>
#include <thread>
#include <utility>
import gpumem;

gpumem::task<std::thread::id> use(auto pool, gpumem::stream& stream, gpumem::executor& worker) {
  auto const block = co_await pool.acquire(stream, 48 << 20, {.resume_on = &worker}); // waits: the pool is full
  co_await gpumem::completion(stream, {.resume_on = &worker});
  co_return std::this_thread::get_id();
}

gpumem::task<> give_back(gpumem::allocation held) {
  held.reset(); // gives the request its turn; the other coroutine does not resume inside this call
  co_return;
}

int main() {
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = 64 << 20}};
  gpumem::stream stream{gpumem::device{0}};
  gpumem::thread_executor worker; // or thread_pool_executor, or executor_adaptor around a job system
  auto held = pool.acquire(stream, 48 << 20).wait();
  auto const all = gpumem::sync_wait(gpumem::when_all(use(pool, stream, worker), give_back(std::move(held))));
  bool const same = std::get<0>(all) == std::this_thread::get_id();
  std::printf("resumed on %s thread\n", same ? "the caller's" : "the worker's");
}
