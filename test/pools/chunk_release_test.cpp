// Requests that wait in a pool of chunks, whose driver call for a free waits for all work of the device.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <stop_token>
#include <thread>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using namespace gpumem::literals;
using gpumem::outcome;

// Two chunks of 4 MiB, no room for a third one, and work of another stream, which the driver waits for when it frees a
// chunk. The work runs only when a test lets it.
class pool_waiting_chunks : public gpumem_test::simulated_test {
protected:
  void SetUp() override {
    simulated_test::SetUp();
    for (auto& each : blocks_) each = pool_.allocate(stream_, 4_MiB);
    simulator::run_until_idle();
  }
  void TearDown() override {
    simulator::run_until_idle();
    simulated_test::TearDown();
  }
  // Lets the work run, after `pause` or at the end of the object.
  std::jthread run_work(std::chrono::milliseconds pause) {
    simulator::work(other_, {}, std::chrono::microseconds{1}, [this] { ran_ = true; });
    return std::jthread{[pause](std::stop_token const& stop) {
      std::mutex mutex;
      std::unique_lock lock{mutex};
      std::condition_variable_any{}.wait_for(lock, stop, pause, [] { return false; });
      while (!stop.stop_requested()) simulator::run_until_idle();
    }};
  }

  gpumem::stream stream_{gpumem::device{0}}, other_{gpumem::device{0}};
  gpumem::pool_resource<gpumem::cuda_resource> pool_{gpumem::device{0},
                                                     {.limit = 8_MiB, .chunk_size = 4_MiB, .pages = false}};
  std::array<void*, 2> blocks_{};
  std::atomic<bool> ran_ = false;
};

TEST_F(pool_waiting_chunks, deadline_does_not_wait_for_the_device) {
  pool_.deallocate(stream_, blocks_[0], 4_MiB);
  {
    auto const runner = run_work(3s);
    auto const got = pool_.acquire(stream_, 6_MiB).wait_until(gpumem::detail::sync::now() + 200ms);
    EXPECT_EQ(got.error().reason, outcome::deadline);
    EXPECT_FALSE(ran_);
  }
  pool_.deallocate(stream_, blocks_[1], 4_MiB);
}

TEST_F(pool_waiting_chunks, chunks_go_back_and_the_request_gets_the_memory) {
  for (auto* const each : blocks_) pool_.deallocate(stream_, each, 4_MiB);
  auto const runner = run_work(10ms);
  EXPECT_TRUE(pool_.acquire(stream_, 8_MiB).wait());
  EXPECT_EQ(pool_.statistics().reserved, 8_MiB);
}

// A request that does not wait in line gets its memory now or not at all, so it waits for the device.
TEST_F(pool_waiting_chunks, request_out_of_line_gives_the_chunks_back_itself) {
  for (auto* const each : blocks_) pool_.deallocate(stream_, each, 4_MiB);
  auto const p = pool_.try_allocate(stream_, 8_MiB);
  ASSERT_TRUE(p);
  pool_.deallocate(stream_, *p, 8_MiB);
}

} // namespace
