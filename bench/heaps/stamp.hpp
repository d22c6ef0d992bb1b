// Stamps of blocks: kernels write them and compare them later.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "heap.hpp"

namespace heaps {

/// The findings of a comparison, in device memory.
struct findings {
  unsigned long long missing = 0;     // requests that got null
  unsigned long long misaligned = 0;  // addresses that are no multiple of 16
  unsigned long long overwritten = 0; // blocks whose stamp has changed
  unsigned long long bytes = 0;       // of all blocks
};

/// Writes the stamp of each block over the whole block.
void write_stamps(block_list const& blocks, cudaStream_t stream);
/// Compares all words of all blocks with their stamps, and adds to *found.
void compare_stamps(block_list const& blocks, findings* found, cudaStream_t stream);
/// Keeps the stream busy for some 50 µs, so that what is launched meanwhile starts without the time of its launch.
void hold(cudaStream_t stream);

} // namespace heaps
