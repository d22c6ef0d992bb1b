// Growths of a heap for kernels on three threads at the limit of a pool, under schedules. Kernels keep blocks, and find
// it if another block overwrites them. Each run replays from its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"
#include "one_lane.hpp"

#include <gpumem/device_heap.hpp>
#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
import gpumem.growable;
import gpumem.device_heap;

namespace {

namespace simulator = gpumem::simulator;
using gpumem::outcome;
using gpumem_test::heap_thread;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
constexpr std::size_t MiB = std::size_t{1} << 20, slab = std::size_t{64} << 10;
constexpr std::size_t limit = 1024 * MiB, reserve = 16 * limit;

// The threads of one run share this. One thread runs at a time.
class shared_heap {
public:
  shared_heap(pool const& from, gpumem::stream& on, std::map<std::string, std::uint64_t>& paths)
      : on_{on}, paths_{paths}, heap_{from, on, {.bytes = 2 * MiB, .reserve = reserve}} {}

  void step(std::mt19937_64& random) {
    switch (random() % 6) {
    case 0: grow(random() % (300 * MiB), false); break;
    case 1: grow(random() % (3 * limit), false); break;
    case 2: grow(random() % (3 * limit), true); break;
    case 3: read(); break;
    default: launch(random()); break;
    }
  }
  // Checks what is left when no thread uses the heap any more.
  void finish(pool& from) {
    auto const metadata = heap_.view().layout().end(heap_.bytes() / slab);
    auto const with_advance = [](std::size_t bytes) { return bytes + std::min(bytes / 8, 32 * MiB) + 2 * MiB; };
    expect(from.statistics().lent <= with_advance(heap_.bytes()) + with_advance(metadata), "memory stays mapped");
    auto const used = gpumem::sync_wait(heap_.statistics(on_));
    expect(used.live == kept_.size(), "the statistics count other blocks");
    expect(used.bad_frees == 0, "a bad free");
    heap_.reset(on_); // since slots keep slabs of their class
    std::size_t blocks = 0;
    simulator::work(on_, {}, {}, [&, view = heap_.view()] {
      heap_thread thread{view};
      while (thread.allocate(slab)) ++blocks;
    });
    auto const full = gpumem::sync_wait(heap_.statistics(on_));
    expect(blocks * slab == heap_.bytes() && full.live == blocks, "kernels get another number of slabs");
  }
  std::string const& wrong() const { return wrong_; }

private:
  void expect(bool right, char const* otherwise) {
    if (!right && wrong_.empty()) wrong_ = otherwise;
  }
  void count(char const* path) { ++paths_[path]; }
  void grow(std::size_t bytes, bool waits) {
    auto reason = outcome::granted;
    if (waits) {
      try {
        gpumem::sync_wait(
            heap_.grow_to(on_, bytes, {.deadline = gpumem::detail::sync::now() + std::chrono::milliseconds{1}}));
      } catch (gpumem::acquire_error const& e) { reason = e.reason(); } catch (gpumem::out_of_memory const& e) {
        reason = e.reason();
      }
    } else if (auto const got = heap_.try_grow_to(on_, bytes); !got) {
      reason = got.error().reason;
    }
    expect(reason != outcome::granted || heap_.bytes() >= bytes, "a growth made a smaller size");
    count(gpumem::to_string(reason));
  }
  // Enqueues a kernel that checks the blocks that others keep, frees one, and allocates some.
  void launch(std::uint64_t seed) {
    count("launched");
    auto const view = heap_.view();
    simulator::work(on_,
                    {simulator::write(view.data(), heap_.bytes()),
                     simulator::write(view.metadata(), view.layout().end(heap_.bytes() / slab))},
                    {}, [this, view, seed] {
                      heap_thread thread{view};
                      for (auto const& [block, stamp] : kept_)
                        expect(*static_cast<std::uint64_t*>(block) == stamp, "a block was overwritten");
                      if (!kept_.empty() && seed % 2) {
                        std::swap(kept_[seed / 2 % kept_.size()], kept_.back());
                        thread.deallocate(kept_.back().first);
                        kept_.pop_back();
                      }
                      for (int i = 0; i < 3; ++i)
                        if (auto* const block = thread.allocate(std::size_t{16} << seed / 16 % 13)) {
                          *static_cast<std::uint64_t*>(block) = seed + static_cast<unsigned>(i);
                          kept_.emplace_back(block, seed + static_cast<unsigned>(i));
                        }
                    });
  }
  void read() {
    count("read");
    auto const seen = gpumem::sync_wait(heap_.statistics(on_));
    auto in_use = seen.free;
    for (auto const& each : seen.classes) in_use += each.in_use;
    expect(in_use == seen.bytes && seen.bytes <= heap_.bytes() && seen.live * slab <= seen.bytes * 4096,
           "the statistics do not add up");
  }

  gpumem::stream& on_;
  std::map<std::string, std::uint64_t>& paths_; // how often the runs took each path
  gpumem::device_heap heap_;
  std::vector<std::pair<void*, std::uint64_t>> kept_; // kernels alone use it
  std::string wrong_;
};

TEST(heap_schedule, growths_of_threads_share_a_heap) {
  gpumem::device const where{0};
  gpumem::device_guard const current{where};
  gpumem::stream on{where}, other{where};
  std::map<std::string, std::uint64_t> paths;
  test::schedule_seeds const seeds{50};
  seeds.each([&](std::uint64_t seed) {
    {
      pool from{where, {.limit = limit}};
      shared_heap heap{from, on, paths};
      std::vector<std::function<void()>> bodies;
      for (std::uint64_t i = 0; i < 3; ++i) {
        bodies.emplace_back([&, i] {
          gpumem::device_guard const here{where};
          std::mt19937_64 random{3 * seed + i};
          for (int n = 0; n < 12; ++n) heap.step(random);
        });
      }
      bodies.emplace_back([&] {
        for (int n = 0; n < 12; ++n)
          if (auto const block = from.acquire(other, 200 * MiB).try_now()) ++paths["a block of others"];
      });
      gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 4);
      heap.finish(from);
      ASSERT_EQ(heap.wrong(), "") << "GPUMEM_SEED=" << seed;
      auto& engine = static_cast<gpumem::detail::pool_state*>(from.services().state)->engine();
      ASSERT_TRUE(engine.is_consistent()) << "GPUMEM_SEED=" << seed;
      ASSERT_LE(from.statistics().peak_reserved, limit) << "GPUMEM_SEED=" << seed;
    }
    for (auto const& found : simulator::take_findings()) FAIL() << found.text << " GPUMEM_SEED=" << seed;
  });
  for (auto const& [path, times] : paths)
    std::printf("%8llu %s\n", static_cast<unsigned long long>(times), path.c_str());
  if (seeds.alone() || seeds.count() < 50) return;
  EXPECT_EQ(paths.size(), 7u) << "a path was never taken";
}

} // namespace
