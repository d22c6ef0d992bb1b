// Resources of the module in code that nvcc compiled: the host part, on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"
#include "thrust_cu.hpp"

#include <cstddef>

#include <cuda.h>

import gpumem;

namespace {

class thrust_bridge : public simulated {
protected:
  gpumem::statistics_adaptor<gpumem::cuda_resource> counted_{gpumem::cuda_resource{}};
  gpumem::stream stream_{gpumem::device{0}};
};

TEST_F(thrust_bridge, allocator_allocates_from_the_resource_of_the_module) {
  EXPECT_TRUE(allocate_through_thrust_allocator(stream_, gpumem::any_pool{counted_}));
  EXPECT_EQ(counted_.counters().bytes, (gpumem::counter{0, 4000, 4000}));
}

TEST_F(thrust_bridge, default_allocator_is_only_a_start) {
  EXPECT_TRUE(use_default_allocator(stream_, gpumem::any_pool{counted_}));
  EXPECT_EQ(counted_.counters().bytes.total, 0);
}

TEST_F(thrust_bridge, nvcc_code_can_use_the_services) {
  gpumem::any_pool const erased{counted_};
  auto const failures = gpumem::cuda_resource{}.statistics().failures;
  EXPECT_EQ(try_in_cu(stream_, erased, 1000), gpumem::outcome::granted);
  EXPECT_EQ(try_in_cu(stream_, erased, std::size_t{1} << 50), gpumem::outcome::exhausted);
  EXPECT_EQ(gpumem::cuda_resource{}.statistics().failures, failures + 1);
  stream_.begin_capture();
  EXPECT_EQ(try_in_cu(stream_, erased, 1000), gpumem::outcome::capture_unsupported); // returned, not thrown
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(stream_.end_capture()), CUDA_SUCCESS);
}

} // namespace
