// Thrust's algorithms on a device, with temporary memory and containers of gpumem's.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/thrust.hpp>

#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include "thrust_device.hpp"

bool sorts_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count) {
  thrust::device_vector<int, gpumem::thrust_allocator<int>> values(count,
                                                                   gpumem::thrust_allocator<int>{stream, resource});
  auto const policy = gpumem::exec_policy(stream, resource);
  thrust::sequence(policy, values.rbegin(), values.rend());
  thrust::sort(policy, values.begin(), values.end());
  return thrust::is_sorted(policy, values.begin(), values.end()) && values.front() == 0 &&
         values.back() == static_cast<int>(count) - 1;
}

long sum_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count) {
  thrust::device_vector<long, gpumem::thrust_allocator<long>> const values(
      count, 2L, gpumem::thrust_allocator<long>{stream, resource});
  return thrust::reduce(gpumem::exec_policy_nosync(stream, resource), values.begin(), values.end(), 0L);
}
