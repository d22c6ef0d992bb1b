// The report at exit of blocks that were never freed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <stdexcept>

import gpumem;

namespace {

using namespace gpumem::literals;

// Each program is a process of its own, so the pools of one are not in the report of another.
class leak_report : public simulated {
protected:
  void SetUp() override {
    simulated::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  void TearDown() override {
    unsetenv("GPUMEM_REPORT_LEAKS");
    simulated::TearDown();
  }
  gpumem::device const device_{0};
};

constexpr auto succeeds = [](int status) { return testing::ExitedWithCode(0)(status); };

TEST_F(leak_report, names_the_pool_and_its_largest_blocks) {
  EXPECT_EXIT(
      {
        setenv("GPUMEM_REPORT_LEAKS", "1", 1);
        static gpumem::stream stream{device_};
        static gpumem::pool_resource pool{device_, {.name = "weights"}};
        (void)pool.allocate(stream, 1000);
        (void)pool.allocate(stream, 3_MiB);
        pool.deallocate(stream, pool.allocate(stream, 500), 500);
        std::exit(0);
      },
      succeeds,
      "gpumem: weights: 2 blocks of 3146728 bytes were never freed; the largest:\n"
      "gpumem:   3145728 bytes at 0x[0-9a-f]+, allocated for stream [0-9]+\n"
      "gpumem:   1000 bytes at 0x[0-9a-f]+, allocated for stream [0-9]+\n");
}

TEST_F(leak_report, shows_the_five_largest_blocks) {
  EXPECT_EXIT(
      {
        setenv("GPUMEM_REPORT_LEAKS", "on", 1);
        gpumem::stream stream{device_};
        gpumem::pool_resource pool{device_};
        for (std::size_t bytes = 1000; bytes < 1010; ++bytes) (void)pool.allocate(stream, bytes);
        std::exit(0);
      },
      succeeds,
      "pool: 10 blocks of 10045 bytes.*\n.* 1009 bytes.*\n.* 1008 .*\n.* 1007 .*\n.* 1006 .*\n.* 1005 [^\n]*\n$");
}

TEST_F(leak_report, includes_pools_whose_handles_are_gone) {
  EXPECT_EXIT(
      {
        setenv("GPUMEM_REPORT_LEAKS", "1", 1);
        gpumem::stream stream{device_};
        std::optional<gpumem::arena_resource<gpumem::cuda_resource>> gone{std::in_place,
                                                                          gpumem::cuda_resource{device_}};
        (void)gone->allocate(stream, 100);
        gone.reset();
        std::exit(0);
      },
      succeeds, "gpumem: arena: 1 blocks of 100 bytes");
}

TEST_F(leak_report, includes_pools_that_are_hardened_or_pass_through) {
  EXPECT_EXIT(
      {
        setenv("GPUMEM_REPORT_LEAKS", "1", 1);
        gpumem::stream stream{device_};
        gpumem::pool_resource hardened{device_, {.name = "hard", .hardened = {.enabled = true}}};
        gpumem::pool_resource passes{device_, {.name = "passes", .pass_through = true}};
        hardened.deallocate(stream, hardened.allocate(stream, 70), 70); // stays in the quarantine
        (void)hardened.allocate(stream, 77);
        (void)passes.allocate(stream, 88);
        std::exit(0);
      },
      succeeds, "hard: 1 blocks of 77 bytes.*\n.* 77 bytes.*\n.*passes: 1 blocks of 88 bytes");
}

TEST_F(leak_report, is_silent_without_leaks_and_without_being_asked) {
  EXPECT_EXIT(
      {
        setenv("GPUMEM_REPORT_LEAKS", "1", 1);
        static gpumem::stream stream{device_};
        static gpumem::pool_resource pool{device_};
        static auto const freed_in_time = pool.acquire(stream, 100).wait();
        std::exit(0);
      },
      succeeds, "^$");
  EXPECT_EXIT(
      {
        setenv("GPUMEM_REPORT_LEAKS", "0", 1);
        gpumem::stream stream{device_};
        gpumem::pool_resource pool{device_};
        (void)pool.allocate(stream, 100);
        std::exit(0);
      },
      succeeds, "^$");
}

TEST_F(leak_report, unknown_value_is_refused) {
  setenv("GPUMEM_REPORT_LEAKS", "maybe", 1);
  EXPECT_THROW(gpumem::pool_resource{device_}, std::invalid_argument);
}

} // namespace
