// Statistics of pools as counters of NVTX, told to a profiling tool by the library thread.
// SPDX-License-Identifier: Apache-2.0
#include "../support/counter_tool.hpp"
#include "../support/longest_wait.hpp"
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <unistd.h>

import gpumem;

namespace {

using namespace gpumem::literals;
using test::counter_tool;

class nvtx_counters : public simulated {
protected:
  void TearDown() override {
    for (auto const& fault : tool_.faults()) ADD_FAILURE() << fault;
    simulated::TearDown();
  }
  /// Waits until the newest sample of the counter is `value`. Returns false after a long time.
  bool becomes(std::string const& name, std::int64_t value) const {
    auto const end = std::chrono::steady_clock::now() + gpumem_test::longest_wait();
    while (tool_.newest(name) != value && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return tool_.newest(name) == value;
  }
  /// Waits until the tool has got this many further samples.
  void wait_for_samples(std::size_t count) const {
    auto const end = std::chrono::steady_clock::now() + gpumem_test::longest_wait();
    auto const enough = tool_.samples() + count;
    while (tool_.samples() < enough && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_GE(tool_.samples(), enough);
  }

  gpumem::device device_{0};
  gpumem::stream stream_{device_};
  counter_tool& tool_ = counter_tool::instance();
};

TEST_F(nvtx_counters, are_the_statistics_of_the_pool) {
  gpumem::pool_resource pool{device_, {.limit = 64_MiB, .name = "training"}};
  void* const block = pool.allocate(stream_, 3_MiB);
  EXPECT_TRUE(becomes("training: live bytes", 3_MiB));
  EXPECT_TRUE(becomes("training: reserved bytes", static_cast<std::int64_t>(pool.statistics().reserved)));
  EXPECT_TRUE(becomes("training: waiting requests", 0));
  std::thread waiter{[&] { static_cast<void>(pool.acquire(stream_, 62_MiB).wait()); }};
  EXPECT_TRUE(becomes("training: waiting requests", 1));
  pool.deallocate(stream_, block, 3_MiB);
  waiter.join();
  pool.deallocate(stream_, pool.allocate(stream_, 1000), 1000);
  EXPECT_TRUE(becomes("training: live bytes", 0));
  EXPECT_TRUE(becomes("training: cached bytes", static_cast<std::int64_t>(pool.statistics().cached)));
}

TEST_F(nvtx_counters, belong_to_each_pool) {
  gpumem::pool_resource first{device_, {.name = "first"}}, second{device_, {.name = "second"}};
  void* const block = second.allocate(stream_, 5_MiB);
  EXPECT_TRUE(becomes("second: live bytes", 5_MiB));
  EXPECT_TRUE(becomes("first: live bytes", 0));
  second.deallocate(stream_, block, 5_MiB);
}

TEST_F(nvtx_counters, pool_that_has_ended_gets_no_samples) {
  {
    gpumem::pool_resource const pool{device_, {.name = "ended"}};
    EXPECT_TRUE(becomes("ended: live bytes", 0));
  }
  auto const samples = tool_.samples();
  gpumem::pool_resource const other{device_, {.name = "other"}};
  EXPECT_TRUE(becomes("other: waiting requests", 0));
  EXPECT_GE(tool_.samples(), samples + 4);
}

TEST_F(nvtx_counters, refused_counters_get_no_samples) {
  tool_.refuse(true);
  gpumem::pool_resource const refused{device_, {.name = "refused"}};
  tool_.refuse(false);
  gpumem::pool_resource const taken{device_, {.name = "taken"}};
  wait_for_samples(8); // two rounds
  EXPECT_FALSE(tool_.newest("refused: live bytes"));
}

TEST_F(nvtx_counters, a_tool_alone_makes_no_page) {
  unsetenv("GPUMEM_MONITOR");
  gpumem::pool_resource const pool{device_};
  wait_for_samples(4);
  EXPECT_FALSE(
      std::filesystem::exists("/dev/shm/gpumem." + std::to_string(geteuid()) + "." + std::to_string(getpid())));
}

} // namespace
