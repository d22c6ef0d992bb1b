// Kernels whose threads allocate from a heap, stamp their blocks, and check and free those of others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap.hpp>

#include <cuda.h>

#include <cstddef>

namespace heap_stamp {

/// Each of `count` threads allocates a block, whose address it writes to `blocks` (device memory), and stamps it.
void allocate(CUstream stream, gpumem::heap_view const& heap, void** blocks, unsigned count, std::size_t bytes);
/// Other threads than those that allocated them check the stamps, add the number of wrong words to *wrong, and free the
/// blocks. Null pointers are left out.
void free(CUstream stream, gpumem::heap_view const& heap, void** blocks, unsigned count, std::size_t bytes,
          unsigned long long* wrong);

} // namespace heap_stamp
