// PyTorch's memory from a stack: a pool that a log watches, with a memory fraction set before the first use.
// SPDX-License-Identifier: Apache-2.0
#include "torch_pools_fixture.hpp"

#include <gpumem/gpumem.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>

namespace {

constexpr double capacity = 80 << 10; // MiB

class torch_stack : public torch_pools {
protected:
  static void SetUpTestSuite() {
    torch_pools::SetUpTestSuite();
    auto const text = "logging(pool(limit=1GiB),format=binary,file=" + path() + ")";
    ASSERT_EQ(gpumem_torch_configure(text.c_str()), GPUMEM_GRANTED) << gpumem_last_error();
    gpumem_torch_memory_fraction(64 / capacity, device);
  }
  static void TearDownTestSuite() { std::filesystem::remove(path()); }

  static std::string path() {
    return std::filesystem::temp_directory_path() / ("torch_stack_" + std::to_string(getpid()));
  }
  static std::string log() {
    std::ifstream file{path(), std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
  }
  // Returns how many rows of the log have this size. The log is written in parts of 64 KiB, so first makes more.
  int rows(std::uint64_t bytes) {
    auto const before = log().size();
    for (int i = 0; i < 10'000 && log().size() < before + (std::size_t{160} << 10); ++i) free_block(block(256));
    auto const all = log();
    EXPECT_GE(all.size(), before + (std::size_t{160} << 10));
    int found = 0;
    for (std::size_t at = 40; at + 40 <= all.size(); at += 40)
      found += *reinterpret_cast<std::uint64_t const*>(&all[at + 16]) == bytes;
    return found;
  }
};

// The limit is the pool's own, as if the fraction was set later. So it can change, and the calls of a pool work.
TEST_F(torch_stack, fraction_before_the_first_use_is_the_limit_of_the_pool) {
  free_block(block(mib));
  EXPECT_EQ(statistics(device).limit, 64 * mib);
  EXPECT_EQ(gpumem_torch_try_allocate(65 * mib, device, stream), nullptr);
  gpumem_torch_memory_fraction(32 / capacity, device);
  EXPECT_EQ(statistics(device).limit, 32 * mib);
  gpumem_torch_memory_fraction(1, device);
  EXPECT_EQ(statistics(device).limit, 1024 * mib);
  gpumem_pool* pool = nullptr;
  ASSERT_EQ(gpumem_torch_pool(device, &pool), GPUMEM_GRANTED);
  EXPECT_EQ(gpumem_write_snapshot(pool, "/dev/null", nullptr), GPUMEM_GRANTED) << gpumem_last_error();
}

TEST_F(torch_stack, log_has_the_blocks_and_what_pools_of_pytorch_take) {
  free_block(block(4711));
  EXPECT_EQ(rows(4711), 2);
  begin({0, 1});
  auto* const inside = block(40 * mib); // alone in its chunk
  end({0, 1});
  EXPECT_EQ(rows(40 * mib), 1);
  free_block(inside);
  release({0, 1});
}

} // namespace
