// Kernels that write a stamp over a whole block and check it later: how a test sees on a real device that no other work
// had the block meanwhile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace stamp {

/// Loads the kernels: the first launch of one that is not loaded waits for what the device runs.
void load();

/// Writes the stamp to every 8-byte word of the block, after spinning for some microseconds.
void write(CUstream stream, void* block, std::size_t bytes, std::uint64_t value, unsigned spin_microseconds = 0);

/// Adds the number of words that do not hold the stamp to *wrong (device memory), after spinning.
void check(CUstream stream, void const* block, std::size_t bytes, std::uint64_t value, unsigned long long* wrong,
           unsigned spin_microseconds = 0);

/// A kernel that runs until *flag (memory that the host and the device see) is not 0.
void wait_for(CUstream stream, unsigned volatile* flag);
/// A kernel that sets it.
void raise(CUstream stream, unsigned volatile* flag);

} // namespace stamp
