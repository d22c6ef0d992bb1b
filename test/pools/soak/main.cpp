// A long run of free-running threads on the simulated device, to find faults that occur once in a million operations.
// Not run by ctest, since it takes minutes: `cmake --build --preset release --target pool_soak`, and --help.
// SPDX-License-Identifier: Apache-2.0
#include "../property/random_source.hpp"
#include "../property/region_upstream.hpp"
#include "shape.hpp"

#include <gpumem/simulator.hpp>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "soak.hpp"

namespace {

using namespace gpumem_test;

bool run(shape const& what, settings const& how, std::vector<gpumem::stream>& streams) {
  gpumem::pool_options const options{.limit = what.limit};
  if (what.pages) return soak{what, how, gpumem::pool_resource{gpumem::device::current(), options}, streams}.run();
  region memory;
  memory.capacity = 512 * MiB;
  CUdeviceptr base{};
  gpumem::driver_api::check(gpumem::driver_api::driver().mem_alloc(&base, memory.capacity), "cuMemAlloc");
  memory.base = base;
  bool const well = soak{what, how, gpumem::pool_resource{blank_upstream{memory}, options}, streams}.run();
  // The library's thread may still release memory; the region must live until it has.
  for (int i = 0; i < 10'000 && memory.drawn() > 0; ++i) {
    simulator::run_until_idle();
    gpumem::detail::sync::sleep_for(std::chrono::milliseconds{1});
  }
  if (memory.drawn() > 0) std::printf("%s: memory was never returned to the upstream\n", what.name);
  return well && memory.drawn() == 0;
}

int help() {
  std::printf(
      "pool_soak [--operations N] [--threads N] [--seed N]\n"
      "Runs many allocations and frees over pools on the simulated device, on free-running threads, divided among\n"
      "these settings:");
  for (auto const& each : shapes) std::printf(" %s;", each.name);
  std::printf(
      "\nFails if a check fails, if less than %.0f %% of the allocations are steals, or if less than %.1f %% of the\n"
      "operations grow or trim the pool. By default 100,000,000 operations of 4 threads.\n",
      least_steals, least_growth);
  return 2;
}

} // namespace

int main(int argc, char** argv) {
  settings how;
  for (int i = 1; i < argc; i += 2) {
    std::string_view const name{argv[i]};
    auto const value = i + 1 < argc ? std::strtoull(argv[i + 1], nullptr, 10) : 0;
    if (value == 0) return help();
    if (name == "--operations") {
      how.operations = value;
    } else if (name == "--threads") {
      how.threads = static_cast<unsigned>(value);
    } else if (name == "--seed") {
      how.seed = value;
    } else {
      return help();
    }
  }
  simulator::load();
  std::vector<gpumem::stream> streams;
  for (unsigned i = 0; i < how.threads; ++i) streams.emplace_back(gpumem::device::current());
  bool well = true;
  for (auto const& each : shapes) well = run(each, how, streams) && well;
  return well ? 0 : 1;
}
