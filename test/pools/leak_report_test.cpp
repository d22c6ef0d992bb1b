// The report at exit of blocks that were never freed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <cstdlib>
#include <stdexcept>

import gpumem;

namespace {

using namespace gpumem::literals;

// Each program is a process of its own, so the pools of one are not in the report of another. It begins with the value
// of the variable, and ends with success.
template <class Program> [[noreturn]] void run(char const* asked, Program program) {
  setenv("GPUMEM_REPORT_LEAKS", asked, 1);
  static gpumem::stream stream{gpumem::device{0}};
  program(stream);
  std::exit(0);
}

void leak_two(gpumem::stream& stream) {
  static gpumem::pool_resource pool{gpumem::device{0}, {.name = "weights"}};
  (void)pool.allocate(stream, 1000);
  (void)pool.allocate(stream, 3_MiB);
  pool.deallocate(stream, pool.allocate(stream, 500), 500);
}

void leak_ten(gpumem::stream& stream) {
  gpumem::pool_resource pool{gpumem::device{0}};
  for (std::size_t bytes = 1000; bytes < 1010; ++bytes) (void)pool.allocate(stream, bytes);
}

void leak_without_a_handle(gpumem::stream& stream) {
  gpumem::arena_resource pool{gpumem::cuda_resource{}};
  (void)pool.allocate(stream, 100);
}

void leak_in_special_pools(gpumem::stream& stream) {
  static gpumem::pool_resource hardened{gpumem::device{0}, {.name = "hard", .hardened = {.enabled = true}}};
  static gpumem::pool_resource passes{gpumem::device{0}, {.name = "passes", .pass_through = true}};
  hardened.deallocate(stream, hardened.allocate(stream, 70), 70); // stays in the quarantine
  (void)hardened.allocate(stream, 77);
  (void)passes.allocate(stream, 88);
}

void leak_nothing(gpumem::stream& stream) {
  static gpumem::pool_resource pool{gpumem::device{0}};
  static auto const freed_in_time = pool.acquire(stream, 100).wait();
}

class leak_report : public simulated {
protected:
  void SetUp() override {
    simulated::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  static constexpr auto succeeds = [](int status) { return testing::ExitedWithCode(0)(status); };
};

TEST_F(leak_report, names_the_pool_and_its_largest_blocks) {
  EXPECT_EXIT(run("1", leak_two), succeeds,
              "gpumem: weights: blocks never freed: 2, of 3146728 bytes in all; the largest:\n"
              "gpumem:   3145728 bytes at 0x[0-9a-f]+, allocated for stream [0-9]+\n"
              "gpumem:   1000 bytes at 0x[0-9a-f]+, allocated for stream [0-9]+\n");
}

TEST_F(leak_report, shows_the_five_largest_blocks) {
  EXPECT_EXIT(run("on", leak_ten), succeeds,
              "pool: blocks never freed: 10, of 10045 bytes.*\n.* 1009 .*\n.* 1008 .*\n.* 1007 .*\n.* 1006 .*\n.* 1005 "
              "[^\n]*\n$");
}

TEST_F(leak_report, includes_pools_whose_handles_are_gone) {
  EXPECT_EXIT(run("1", leak_without_a_handle), succeeds, "gpumem: arena: blocks never freed: 1, of 100 bytes");
}

TEST_F(leak_report, includes_pools_that_are_hardened_or_pass_through) {
  EXPECT_EXIT(
      run("1", leak_in_special_pools), succeeds,
      "hard: blocks never freed: 1, of 77 bytes.*\n.* 77 bytes.*\n.*passes: blocks never freed: 1, of 88 bytes");
}

TEST_F(leak_report, is_silent_without_leaks_and_without_being_asked) {
  EXPECT_EXIT(run("1", leak_nothing), succeeds, "^$");
  EXPECT_EXIT(run("0", leak_two), succeeds, "^$");
}

TEST_F(leak_report, unknown_value_is_refused) {
  setenv("GPUMEM_REPORT_LEAKS", "maybe", 1);
  EXPECT_THROW(gpumem::pool_resource{gpumem::device{0}}, std::invalid_argument);
  unsetenv("GPUMEM_REPORT_LEAKS");
}

} // namespace
