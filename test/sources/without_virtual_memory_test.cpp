// A device without virtual memory management.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/make_pool.hpp>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <string>

#include <cuda.h>

import gpumem;

namespace {

TEST(without_virtual_memory, virtual_pages_are_refused_and_a_pool_uses_chunks) {
  gpumem::simulator::load({.virtual_memory = false});
  gpumem::device const where{0};
  EXPECT_FALSE(gpumem::extend::virtual_pages::supported(where));
  try {
    gpumem::extend::virtual_pages const pages{where};
    FAIL() << "virtual pages were made";
  } catch (gpumem::cuda_error const& e) {
    EXPECT_EQ(static_cast<int>(e.status()), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_NE(std::string{e.what()}.find("device 0 has no virtual memory"), std::string::npos) << e.what();
  }
  gpumem::stream stream{where};
  auto const use = [&](auto pool) { pool.deallocate(stream, pool.allocate(stream, 1024, 256), 1024, 256); };
  use(gpumem::pool_resource{gpumem::cuda_resource{where}});
  use(gpumem::pool_resource{where});
  use(gpumem::pool_resource{where, {.pages = false}});
  use(gpumem::make_pool(0));
  use(gpumem::current_resource(where));
  auto calls = gpumem::simulator::report().driver_calls;
  EXPECT_EQ(calls["cuMemAlloc"], 5u);
  EXPECT_EQ(calls["cuMemCreate"] + calls["cuMemAddressReserve"], 0u);
}

} // namespace
