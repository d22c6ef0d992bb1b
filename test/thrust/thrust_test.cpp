// Thrust's algorithms with its host backend, in memory from gpumem.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstddef>
#include <new>
#include <stdexcept>
#include <utility>

import gpumem;
import gpumem.thrust;

namespace {

class thrust_module : public simulated {
protected:
  gpumem::statistics_adaptor<gpumem::host_resource> counted_{gpumem::host_resource{}};
  gpumem::stream stream_{gpumem::device{0}};
};

TEST_F(thrust_module, vector_uses_memory_of_the_resource) {
  {
    gpumem::device_vector<int> values(1000, 3, gpumem::thrust_allocator<int>{stream_, counted_});
    EXPECT_EQ(counted_.counters().bytes.value, 4000);
    values.resize(2000, 4);
    EXPECT_EQ(thrust::reduce(values.begin(), values.end()), 7000);
    auto const copy = values;
    EXPECT_EQ(counted_.counters().allocations.value, 2);
    EXPECT_EQ(copy[1999], 4);
  }
  EXPECT_EQ(counted_.counters().bytes.value, 0);
}

TEST_F(thrust_module, algorithms_take_temporary_memory_from_the_resource) {
  gpumem::thrust_allocator<int> allocator{stream_, counted_};
  gpumem::device_vector<int> values(5000, allocator);
  thrust::sequence(values.rbegin(), values.rend());
  auto const before = counted_.counters().allocations.total;
  thrust::stable_sort(thrust::device(allocator), values.begin(), values.end());
  EXPECT_GT(counted_.counters().allocations.total, before);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(values[i], i);
}

TEST_F(thrust_module, rebound_allocators_share_the_resource) {
  gpumem::thrust_allocator<double> const doubles{stream_, counted_};
  gpumem::thrust_allocator<int> const ints{doubles};
  EXPECT_TRUE(gpumem::thrust_allocator<double>{ints} == doubles);
  gpumem::statistics_adaptor other{gpumem::host_resource{}};
  EXPECT_FALSE((gpumem::thrust_allocator<double>{stream_, other} == doubles));
  EXPECT_THROW((void)gpumem::thrust_allocator<int>{ints}.allocate(std::size_t{1} << 62), std::bad_array_new_length);
}

TEST_F(thrust_module, empty_resource_is_refused) {
  gpumem::mr::any_resource<gpumem::mr::host_accessible> erased{counted_};
  [[maybe_unused]] auto const moved = std::move(erased);
  EXPECT_THROW((gpumem::thrust_allocator<int>{stream_, erased}), std::invalid_argument);
}

} // namespace
