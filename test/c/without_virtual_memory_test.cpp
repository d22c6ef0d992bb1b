// C pools and PyTorch's pools on a device without virtual memory management: they use chunks.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem_torch.h>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace {

namespace simulator = gpumem::simulator;
constexpr std::size_t mib = std::size_t{1} << 20;

class c_without_virtual_memory : public testing::Test {
protected:
  static void SetUpTestSuite() { simulator::load({.virtual_memory = false}); }
  void SetUp() override { simulator::clear_driver_calls(); }
  void TearDown() override {
    auto calls = simulator::report().driver_calls;
    EXPECT_EQ(calls["cuMemCreate"] + calls["cuMemAddressReserve"], 0u);
    EXPECT_GT(calls["cuMemAlloc"], 0u);
    EXPECT_EQ(simulator::run_until_idle(), 0u);
    for (auto const& finding : simulator::take_findings()) ADD_FAILURE() << finding.text;
  }
};

TEST_F(c_without_virtual_memory, pool_allocates_chunks_whatever_the_options_say) {
  for (auto const* options : {"", "pages=on", "pages=off", "effort=1,initial_size=4MiB,limit=64MiB"}) {
    gpumem_pool* pool = nullptr;
    void* block = nullptr;
    std::size_t given_back = 0;
    ASSERT_EQ(gpumem_make_pool(0, options, &pool), GPUMEM_GRANTED) << gpumem_last_error();
    EXPECT_EQ(gpumem_allocate_sync(pool, 3 * mib, GPUMEM_ALIGNMENT, &block), GPUMEM_GRANTED) << gpumem_last_error();
    EXPECT_EQ(gpumem_free_sync(pool, block, 3 * mib), GPUMEM_GRANTED);
    EXPECT_EQ(gpumem_trim(pool, 0, &given_back), GPUMEM_GRANTED);
    EXPECT_EQ(given_back, 4 * mib);
    EXPECT_EQ(gpumem_release(pool), GPUMEM_GRANTED);
  }
}

TEST_F(c_without_virtual_memory, pytorch_allocator_works_over_chunks) {
  auto* const block = gpumem_torch_try_allocate(3 * mib, 0, nullptr);
  EXPECT_NE(block, nullptr) << gpumem_last_error();
  gpumem_torch_free(block, 3 * mib, 0, nullptr);
}

TEST(c_without_pageable_access, memory_of_the_hosts_allocator_is_refused_by_name) {
  simulator::load({.virtual_memory = false});
  gpumem_pool* pool = nullptr;
  EXPECT_EQ(gpumem_make_pool(0, "system", &pool), GPUMEM_DRIVER_ERROR);
  EXPECT_NE(std::string{gpumem_last_error()}.find("cannot access memory of the host's allocator"), std::string::npos);
}

} // namespace
