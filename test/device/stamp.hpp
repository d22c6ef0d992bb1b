// Kernels that write a stamp over a whole block and check it later. With them a test on a real device finds other work
// that used the block meanwhile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace stamp {

/// Loads the kernels in advance: the first launch of a kernel that is not loaded waits for the device's running work.
void load();

/// Spins for the given time, then writes the stamp to every 8-byte word of the block.
void write(CUstream stream, void* block, std::size_t bytes, std::uint64_t value, unsigned spin_microseconds = 0);

/// Spins, then adds the number of words that do not hold the stamp to *wrong (device memory).
void check(CUstream stream, void const* block, std::size_t bytes, std::uint64_t value, unsigned long long* wrong,
           unsigned spin_microseconds = 0);

/// Launches a kernel that runs until *flag is not 0. Host and device must be able to access *flag.
void wait_for(CUstream stream, unsigned volatile* flag);
/// Launches a kernel that sets *flag.
void raise(CUstream stream, unsigned volatile* flag);

} // namespace stamp
