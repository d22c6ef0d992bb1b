// stream_pool: streams in turn, by index, and from many threads.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <atomic>
#include <concepts>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

static_assert(!std::movable<gpumem::stream_pool>);

class stream_pool : public simulated {
protected:
  gpumem::device first{0};
};

TEST_F(stream_pool, next_returns_distinct_streams_in_turn) {
  gpumem::stream_pool pool{first, 5};
  EXPECT_EQ(pool.size(), 5u);
  std::set<CUstream> seen;
  for (int i = 0; i < 5; ++i) seen.insert(pool.next().get());
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_FALSE(seen.contains(nullptr));
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(pool.next().get(), pool[i].get());
}

TEST_F(stream_pool, next_leaves_out_streams_that_capture) {
  auto const& driver = gpumem::driver_api::driver();
  gpumem::stream_pool pool{first, 3};
  auto const begin = [&](std::size_t i) {
    EXPECT_EQ(driver.stream_begin_capture(pool[i].get(), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  };
  begin(1);
  for (int i = 0; i < 6; ++i) EXPECT_NE(pool.next().get(), pool[1].get());
  begin(0);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(pool.next().get(), pool[2].get());
  begin(2);
  std::set<CUstream> seen;
  for (int i = 0; i < 3; ++i) seen.insert(pool.next().get());
  EXPECT_FALSE(seen.contains(nullptr));
  for (std::size_t i = 0; i < 3; ++i) {
    CUgraph graph = nullptr;
    EXPECT_EQ(driver.stream_end_capture(pool[i].get(), &graph), CUDA_SUCCESS);
    EXPECT_EQ(driver.graph_destroy(graph), CUDA_SUCCESS);
  }
  seen.clear();
  for (int i = 0; i < 3; ++i) seen.insert(pool.next().get());
  EXPECT_EQ(seen.size(), 3u);
}

TEST_F(stream_pool, index_selects_one_stream) {
  gpumem::stream_pool const pool{first, 3};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pool[i].get(), pool[i].get());
    EXPECT_EQ(pool[i].get(), pool[i + 3].get());
    EXPECT_NE(pool[i].get(), pool[i + 1].get());
  }
}

TEST_F(stream_pool, has_sixteen_streams_of_the_current_device_by_default) {
  gpumem::device const second{1};
  gpumem::device_guard const scope{second};
  gpumem::stream_pool const pool;
  EXPECT_EQ(pool.size(), 16u);
  EXPECT_EQ(pool.device(), second);
  EXPECT_EQ(gpumem::extend::identify(pool[0]).identity().timeline().device(), 1);
}

TEST_F(stream_pool, streams_have_the_requested_priority) {
  gpumem::stream_pool const pool{first, 2, -1};
  int priority = 0;
  ASSERT_EQ(gpumem::driver_api::driver().stream_get_priority(pool[1].get(), &priority), CUDA_SUCCESS);
  EXPECT_EQ(priority, -1);
}

TEST_F(stream_pool, refuses_zero_streams) {
  EXPECT_THROW((gpumem::stream_pool{first, 0}), std::invalid_argument);
  EXPECT_THROW((gpumem::stream_pool{gpumem::device{2}, 1}), std::invalid_argument);
}

TEST_F(stream_pool, streams_are_returned_when_it_ends) {
  { gpumem::stream_pool const pool{first, 4}; }
  auto const made = gpumem::driver_api::driver_calls("cuStreamCreateWithPriority");
  gpumem::stream_pool const pool{first, 4};
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamCreateWithPriority"), made);
}

TEST_F(stream_pool, synchronize_waits_for_all_streams) {
  gpumem::stream_pool pool{first, 3};
  std::atomic<int> done{0};
  for (std::size_t i = 0; i < 6; ++i) gpumem::simulator::work(pool[i], {}, {}, [&] { ++done; });
  pool.synchronize();
  EXPECT_EQ(done, 6);
}

TEST_F(stream_pool, concurrent_threads_get_all_streams_equally) {
  gpumem::stream_pool pool{first, 7};
  std::mutex guard;
  std::map<CUstream, int> dealt;
  std::vector<std::thread> running;
  for (int i = 0; i < 8; ++i) {
    running.emplace_back([&] {
      for (int k = 0; k < 70; ++k) {
        auto* const handle = pool.next().get();
        std::scoped_lock const held{guard};
        ++dealt[handle];
      }
    });
  }
  for (auto& thread : running) thread.join();
  EXPECT_EQ(dealt.size(), 7u);
  for (auto const& [handle, count] : dealt) EXPECT_EQ(count, 80);
}

} // namespace
