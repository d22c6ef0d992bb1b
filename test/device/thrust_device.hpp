// The functions of the .cu files of these tests, for C++ units.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/services.hpp>

#include <cstddef>

/// Runs sort, scan, copy_if and unique on the stream, with memory of the resource, and compares each with the host's
/// result. Returns the name of the first that differs; empty if none does. `waits`: uses exec_policy, otherwise its
/// no-sync form.
char const* algorithm_that_differs(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count, bool waits);
/// Returns the sum of `count` twos.
long sum_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count);

/// CUB with the resource in its environment: the sum of `count` twos, and the last of their running sums.
struct cub_sums {
  long sum;
  long last_running_sum;
};
cub_sums cub_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count);
/// Returns the sum of a cuda::buffer of `count` twos over the resource.
long buffer_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count);
