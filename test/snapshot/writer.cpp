// Writes two snapshots of a pool that has blocks in each state, and a request that waits, as JSON and as pickles.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>

#include <cstddef>
#include <string>
#include <thread>

import gpumem;
import gpumem.snapshot;

int main(int, char** arguments) {
  gpumem::simulator::load({.mode = gpumem::simulator::stepping::manual});
  std::string const folder = arguments[1];
  constexpr std::size_t MiB = std::size_t{1} << 20;
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.limit = 64 * MiB, .name = "a \"pool\"\n"}};
  gpumem::stream const stream{card};
  auto* const weights = pool.allocate(stream, 30 * MiB - 5);
  auto* const freed = pool.allocate(stream, 3 * MiB);
  auto* const small = pool.allocate(stream, 1000);
  auto* const kept = pool.allocate(stream, 22 * MiB);
  pool.set_label(weights, "weights\\\x01");
  pool.deallocate(stream, freed, 3 * MiB);
  pool.deallocate(stream, small, 1000);
  auto const write = [&](std::string const& name) {
    auto const snapshot = gpumem::take_snapshot(pool);
    gpumem::write_snapshot(snapshot, folder + "/" + name + ".json");
    gpumem::write_snapshot(snapshot, folder + "/" + name + ".pickle", gpumem::snapshot_format::pickle);
  };
  write("before");
  gpumem::scope work{pool, "work"};
  std::thread waits{[&] {
    gpumem::device_guard const here{card};
    auto const block = work.acquire(stream, 40 * MiB).wait();
  }};
  while (pool.statistics().waiting == 0) std::this_thread::yield();
  write("waiting");
  pool.deallocate(stream, weights, 30 * MiB - 5);
  pool.deallocate(stream, kept, 22 * MiB);
  gpumem::simulator::run_until_idle();
  waits.join();
}
