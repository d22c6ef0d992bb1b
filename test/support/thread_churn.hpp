// Random allocations and frees by several threads. Include it after `import gpumem;` and after <functional>, <random>,
// <thread>, <utility> and <vector>: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Four threads allocate and free at random on streams of their own, each with up to `most_live` blocks of up to
/// `most_bytes` bytes. Each thread calls `on_step(live blocks)` after each of its 300 steps, and frees all at its end.
template <class Resource>
void churn_by_threads(
    Resource& from, std::size_t most_live, std::size_t most_bytes,
    std::function<void(std::size_t)> const& on_step = [](std::size_t) {}) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      gpumem::stream own{gpumem::device{0}};
      std::mt19937 random{seed};
      std::vector<std::pair<void*, std::size_t>> live;
      for (int i = 0; i < 300; ++i) {
        if (live.empty() || (live.size() < most_live && random() % 3)) {
          std::size_t const bytes = 1 + random() % most_bytes;
          live.emplace_back(from.allocate(own, bytes), bytes);
        } else {
          std::swap(live[random() % live.size()], live.back());
          from.deallocate(own, live.back().first, live.back().second);
          live.pop_back();
        }
        on_step(live.size());
      }
      for (auto const& [p, bytes] : live) from.deallocate(own, p, bytes);
    });
  }
  for (auto& each : threads) each.join();
}

} // namespace test
