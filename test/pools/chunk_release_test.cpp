// Requests that wait in a pool of chunks, whose driver call for a free waits for all work of the device.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using namespace gpumem::literals;
using gpumem::outcome;

// Two chunks of 4 MiB, no room for a third one, and work of another stream, which the driver waits for when it frees a
// chunk. The work runs on the thread that waits for it.
class pool_waiting_chunks : public gpumem_test::simulated_test {
protected:
  void SetUp() override {
    simulated_test::SetUp();
    for (auto& each : blocks_) each = pool_.allocate(stream_, 4_MiB);
  }
  void free_and_see_the_end(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) pool_.deallocate(stream_, blocks_[i], 4_MiB);
    while (!pool_.synchronize(0s)) simulator::run_until_idle();
    simulator::work(other_, {}, std::chrono::microseconds{1}, [this] { waited_ = std::this_thread::get_id(); });
  }
  static auto in(std::chrono::milliseconds time) { return gpumem::detail::sync::now() + time; }

  gpumem::stream stream_{gpumem::device{0}}, other_{gpumem::device{0}};
  gpumem::pool_resource<gpumem::cuda_resource> pool_{gpumem::device{0},
                                                     {.limit = 8_MiB, .chunk_size = 4_MiB, .pages = false}};
  std::array<void*, 2> blocks_{};
  std::atomic<std::thread::id> waited_{};
};

TEST_F(pool_waiting_chunks, deadline_does_not_wait_for_the_device) {
  free_and_see_the_end(1);
  auto const got = pool_.acquire(stream_, 6_MiB).wait_until(in(200ms));
  EXPECT_EQ(got.error().reason, outcome::deadline);
  EXPECT_NE(waited_.load(), std::this_thread::get_id());
  pool_.deallocate(stream_, blocks_[1], 4_MiB);
}

TEST_F(pool_waiting_chunks, chunks_go_back_and_the_request_gets_the_memory) {
  free_and_see_the_end(2);
  EXPECT_TRUE(pool_.acquire(stream_, 8_MiB).wait_until(in(gpumem_test::longest_wait())));
  EXPECT_NE(waited_.load(), std::this_thread::get_id());
  EXPECT_EQ(pool_.statistics().reserved, 8_MiB);
}

// A request that does not wait in line gets its memory now or not at all, so it waits for the device.
TEST_F(pool_waiting_chunks, request_out_of_line_gives_the_chunks_back_itself) {
  free_and_see_the_end(2);
  auto const p = pool_.try_allocate(stream_, 8_MiB);
  ASSERT_TRUE(p);
  EXPECT_EQ(waited_.load(), std::this_thread::get_id());
  pool_.deallocate(stream_, *p, 8_MiB);
}

} // namespace
