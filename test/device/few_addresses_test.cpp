// A pool over pages on a real device whose addresses are all reserved.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <cuda.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class few_addresses_on_device : public device_test {
protected:
  // Reserves all addresses that the driver has.
  void SetUp() override {
    device_test::SetUp();
    if (!wrong_) return;
    for (std::size_t bytes = std::size_t{1} << 46; bytes >= 2 * mib; bytes /= 2) {
      for (CUdeviceptr at = 0; reserve(at, bytes) == CUDA_SUCCESS;) {
        taken_.emplace_back(at, bytes);
        total_ += bytes;
      }
    }
    std::printf("%zu GiB of addresses in %zu ranges\n", total_ / mib / 1024, taken_.size());
  }
  void TearDown() override {
    for (auto const& [at, bytes] : taken_) driver_api::driver().mem_address_free(at, bytes);
    device_test::TearDown();
  }

  CUresult reserve(CUdeviceptr& at, std::size_t bytes) {
    return refusal_ = driver_api::driver().mem_address_reserve(&at, bytes, 0, 0, 0);
  }

  std::vector<std::pair<CUdeviceptr, std::size_t>> taken_;
  std::size_t total_ = 0;
  CUresult refusal_ = CUDA_SUCCESS;
};

TEST_F(few_addresses_on_device, pool_gets_chunks_or_names_addresses) {
  EXPECT_EQ(refusal_, CUDA_ERROR_OUT_OF_MEMORY);
  pool_resource<cuda_resource> pool{device{0}};
  stream on{device{0}};
  try {
    auto* const p = pool.allocate(on, 64 * mib);
    EXPECT_EQ(pool.statistics().reserved, 64 * mib);
    stamp::write(on.get(), p, 64 * mib, 7);
    on.synchronize();
    pool.deallocate(on, p, 64 * mib);
    std::printf("the pool got a chunk\n");
  } catch (out_of_memory const& e) {
    EXPECT_NE(std::string{e.what()}.find("out of addresses"), std::string::npos) << e.what();
    std::printf("%s\n", e.what());
  }
}

} // namespace
