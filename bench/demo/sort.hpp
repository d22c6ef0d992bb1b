// Sorts in stream order: on the device, or on the host where the simulated device runs no kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/services.hpp>

#include <cstddef>

namespace demo {

/// Enqueues a Thrust sort, which gets its scratch memory from `scratch`.
void sort_on_device(cuda::stream_ref stream, gpumem::pool_ref scratch, unsigned* keys, std::size_t count);

/// The argument of the host function that sorts. Must live until that function has run.
struct host_sort {
  unsigned* keys;
  std::size_t count;
  /// The host function for the driver: `data` points to a host_sort.
  static void run(void* data);
};

} // namespace demo
