// What the .cu files of these tests offer to C++ units.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/services.hpp>

#include <cstddef>

/// Runs sort, scan, copy_if and unique on the stream, with memory of the resource, and compares each with the host's;
/// the name of the first that differs, or "". `waits`: through exec_policy, else through its no-sync form.
char const* algorithm_that_differs(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count, bool waits);
/// The sum of `count` twos.
long sum_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count);

/// CUB with the resource in its environment: the sum of `count` twos, and of their running sums the last.
struct cub_sums {
  long sum;
  long last_running_sum;
};
cub_sums cub_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count);
/// The sum of a cuda::buffer of `count` twos over the resource.
long buffer_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count);
