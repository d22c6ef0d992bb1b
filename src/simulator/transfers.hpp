// Copies and fills as operations of a stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "simulation.hpp"

namespace simulated {

/// Copies in stream order. A copy from pageable to device memory reads the source during the call; a copy to pageable
/// memory waits for the stream. Neither holds for devices that can access pageable memory: there a program may rely on
/// the order of the stream alone. `wait`: a synchronous copy; it waits unless both sides are device memory.
CUresult transfer(simulation& device, const stream_ptr& on, std::uint64_t to, std::uint64_t from, std::size_t bytes,
                  bool wait, const char* call) __attribute__((requires_capability(simulation_mutex)));

/// Fills `count` elements of `width` bytes in stream order. Refuses memory that the device cannot access.
CUresult fill(simulation& device, const stream_ptr& on, std::uint64_t to, std::uint32_t value, unsigned width,
              std::size_t count);

} // namespace simulated
