// Pools that grow in a hurry: kernels of 20 us on 16 streams, each on memory that is allocated before and freed after
// it. Counts of pages, on the clock of the schedules.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <cuda.h>
#include <dlfcn.h>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
namespace sync = gpumem::detail::sync;
using namespace std::chrono_literals;
constexpr std::size_t MiB = std::size_t{1} << 20;

std::uint64_t calls(char const* name) { return gpumem::driver_api::driver_calls(name); }

// The memory that PyTorch's caching allocator reserves for blocks of which each is freed before the next is allocated:
// segments of one stream, which serve only requests of that stream.
class caching_model {
public:
  void use(std::size_t stream, std::size_t bytes) {
    bool const small = bytes <= MiB;
    auto& free = free_[{stream, small}];
    if (free.lower_bound(bytes) != free.end()) return;
    auto const whole = (bytes + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
    auto const segment = small ? 2 * MiB : bytes < 10 * MiB ? 20 * MiB : whole;
    free.insert(segment);
    reserved_ += segment;
  }
  std::size_t reserved() const { return reserved_; }

private:
  std::map<std::pair<std::size_t, bool>, std::multiset<std::size_t>> free_;
  std::size_t reserved_ = 0;
};

// Kernels of a fixed duration, by the clock of the schedules: each waits until a word in memory has counted it.
class kernels {
public:
  kernels(std::size_t streams, sync::duration each) : each_{each}, of_(streams) {
    words_ = static_cast<std::uint32_t*>(memory_.allocate_sync(4096));
    std::fill_n(words_, streams, 0u);
    for (std::size_t i = 0; i < streams; ++i) streams_.emplace_back(gpumem::device{0});
    wait_ = reinterpret_cast<decltype(wait_)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamWaitValue32_v2"));
    simulator::set_schedule_hooks([](void* all) { static_cast<kernels*>(all)->run(); },
                                  [](void*) { return gpumem::detail::schedule::blocked(); }, this);
  }
  ~kernels() {
    std::fill_n(words_, streams_.size(), ~0u >> 1);
    simulator::set_schedule_hooks(nullptr, [](void*) { return gpumem::detail::schedule::blocked(); }, nullptr);
    simulator::run_until_idle();
    memory_.deallocate_sync(words_, 4096);
  }
  gpumem::stream const& operator[](std::size_t i) const { return streams_[i]; }
  void launch(std::size_t on) {
    sync::sleep_for(3100ns);
    auto& queue = of_[on];
    EXPECT_EQ(wait_(streams_[on].get(), reinterpret_cast<CUdeviceptr>(words_ + on), ++queue.launched, 0), CUDA_SUCCESS);
    queue.last = std::max(queue.last, sync::now()) + each_;
    queue.ends.push_back(queue.last);
  }

private:
  struct queue {
    std::deque<sync::time_point> ends;
    sync::time_point last{};
    std::uint32_t launched = 0;
  };
  void run() {
    for (std::size_t i = 0; i < of_.size(); ++i) {
      for (auto& ends = of_[i].ends; !ends.empty() && ends.front() <= sync::now(); ends.pop_front()) ++words_[i];
    }
  }
  gpumem::cuda_resource memory_{gpumem::device{0}};
  sync::duration each_;
  std::vector<queue> of_;
  std::vector<gpumem::stream> streams_;
  std::uint32_t* words_ = nullptr;
  CUresult (*wait_)(CUstream, CUdeviceptr, cuuint32_t, unsigned) = nullptr;
};

class hurried_growth : public testing::Test {
protected:
  static void SetUpTestSuite() { simulator::load({.mode = simulator::stepping::immediate}); }
  void TearDown() override { simulator::expect_silent(); }

  struct counts {
    std::uint64_t moved, pages; // pages that moved; the most that were mapped at once
  };
  // Returns options for a driver that takes 33 us to make or move a page.
  static gpumem::virtual_pages_options slow_pages() {
    return {.on_mapped = [seen = calls("cuMemMap")](void*, std::size_t) mutable {
      auto const more = calls("cuMemMap") - std::exchange(seen, calls("cuMemMap"));
      sync::sleep_for(static_cast<std::int64_t>(more) * 33us);
      return true;
    }};
  }
  // Runs 2,000 steps: each allocates, launches a kernel, and frees.
  counts run(gpumem::pool_resource<gpumem::cuda_resource>& pool, kernels& on, std::size_t streams) {
    std::mt19937_64 random{4};
    std::uniform_real_distribution<double> magnitude{18, 26};
    auto const maps = calls("cuMemMap"), made = calls("cuMemCreate");
    std::uint64_t most = 0;
    for (int i = 0; i < 2000; ++i) {
      auto const stream = static_cast<std::size_t>(random() % streams);
      auto const bytes = static_cast<std::size_t>(std::exp2(magnitude(random)));
      auto* const block = pool.allocate(on[stream], bytes);
      most = std::max(most, calls("cuMemCreate") - calls("cuMemRelease"));
      on.launch(stream);
      pool.deallocate(on[stream], block, bytes);
      model_.use(stream, bytes);
    }
    return {calls("cuMemMap") - maps - (calls("cuMemCreate") - made), most};
  }
  caching_model model_;
};

TEST_F(hurried_growth, few_pages_move_at_first_and_after_a_pause) {
  constexpr std::size_t streams = 16;
  kernels on{streams, 20us};
  gpumem::pool_resource pool{gpumem::device{0}, {}, slow_pages()};
  for (int pass = 0; pass < 4; ++pass) {
    auto const [moved, pages] = run(pool, on, streams);
    EXPECT_LE(static_cast<double>(moved), .3 * static_cast<double>(pages)) << pass;
    EXPECT_LE(pool.statistics().peak_reserved, model_.reserved()) << "what PyTorch reserves";
    sync::sleep_for(1s);
  }
}

} // namespace
