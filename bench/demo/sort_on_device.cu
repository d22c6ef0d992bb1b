// The sort on the device: compiled by nvcc, with memory from a resource that a module made.
// SPDX-License-Identifier: Apache-2.0
#include "sort.hpp"

#include <gpumem/thrust.hpp>

#include <thrust/sort.h>

void demo::sort_on_device(cuda::stream_ref stream, gpumem::pool_ref scratch, unsigned* keys, std::size_t count) {
  thrust::sort(gpumem::exec_policy(stream, scratch), keys, keys + count);
}
