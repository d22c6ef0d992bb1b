// Two coroutines await memory on streams of their own, sort there and await the GPU. Then the pool's statistics are
// printed. The keys and the order of the simulated device come from fixed seeds, so each run prints the same.
// SPDX-License-Identifier: Apache-2.0
#include "sort.hpp"

#include <gpumem/simulator.hpp>

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include <cuda.h>

import gpumem;

using pool = gpumem::pool_resource<gpumem::cuda_resource>;

gpumem::task<bool> sort_some(pool memory, std::size_t count, bool simulated) {
  std::vector<unsigned> keys(count);
  std::generate(keys.begin(), keys.end(), std::mt19937{7});
  gpumem::stream stream{*memory.device()};
  gpumem::allocation block = co_await memory.acquire(stream, count * sizeof(unsigned)); // does not wait for the GPU
  auto const& driver = gpumem::driver_api::driver();
  auto const address = reinterpret_cast<CUdeviceptr>(block.data());
  gpumem::driver_api::check(driver.memcpy_htod_async(address, keys.data(), block.bytes(), stream.get()), "copy in");
  demo::host_sort on_host{block.as<unsigned>().data(), count};
  if (simulated) {
    gpumem::driver_api::check(driver.launch_host_func(stream.get(), demo::host_sort::run, &on_host), "sort");
  } else {
    demo::sort_on_device(stream, memory, on_host.keys, count);
  }
  gpumem::driver_api::check(driver.memcpy_dtoh_async(keys.data(), address, block.bytes(), stream.get()), "copy out");
  co_await gpumem::completion(stream); // waits for the GPU
  co_return std::is_sorted(keys.begin(), keys.end());
}

int main() {
  bool const simulated = gpumem::simulator::auto_load({.seed = 7});
  if (simulated) {
    std::puts("on the simulated device: kernels do not run there, so a host function on the stream sorts;\n"
              "counts and bytes are those of a GPU, and no time is shown, since time means nothing there");
  }
  gpumem::device const device{0};
  gpumem::device_guard const here{device};
  pool memory{device};
  auto const [first, second] =
      gpumem::sync_wait(gpumem::when_all(sort_some(memory, 1 << 20, simulated), sort_some(memory, 1 << 18, simulated)));
  gpumem::statistics const seen = memory.statistics();
  std::printf("two streams sorted %s: %llu allocations, at most %zu KiB live and %zu KiB reserved\n",
              first && second ? "right" : "WRONG", static_cast<unsigned long long>(seen.allocations),
              seen.peak_live >> 10, seen.peak_reserved >> 10);
  return first && second ? 0 : 1;
}
