// Sorting in stream order, by the device or, where kernels do not run, by the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/services.hpp>

#include <cstddef>

namespace demo {

/// Enqueues a sort by Thrust, whose scratch memory comes from the resource.
void sort_on_device(cuda::stream_ref stream, gpumem::pool_ref scratch, unsigned* keys, std::size_t count);

/// What a host function sorts; to be kept until it has run.
struct host_sort {
  unsigned* keys;
  std::size_t count;
  /// For the driver: `data` is a host_sort.
  static void run(void* data);
};

} // namespace demo
