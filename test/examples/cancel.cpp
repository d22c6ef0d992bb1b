// A request that waits ends at its deadline, or when a stop is requested.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <coroutine>
#include <cstdio>
#include <stop_token>
import gpumem;

using namespace gpumem;
using namespace gpumem::literals;

using pool_type = pool_resource<cuda_resource>;

task<> step(pool_type pool, stream& on, acquire_options how, std::stop_token token) {
  try {
    auto const block = co_await pool.acquire(on, 64_MiB, how, token); // the stop token is the fourth argument
  } catch (acquire_error const& ended) { std::printf("%s\n", to_string(ended.reason())); }
}

int main() {
  device const card{0};
  stream work{card};
  pool_type pool{card, {.limit = 64_MiB}};
  auto const held = pool.acquire(work, 48_MiB).wait();
  auto const soon = std::chrono::steady_clock::now() + std::chrono::milliseconds{20};
  sync_wait(step(pool, work, {.deadline = soon}, {}));

  std::stop_source source;
  auto const stop = [&source]() -> task<> {
    source.request_stop();
    co_return;
  };
  sync_wait(when_all(step(pool, work, {}, source.get_token()), stop()));
}
