// Copies and fills as operations of a stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <cstddef>
#include <cstdint>
#include <span>

#include "simulation.hpp"

namespace simulated {

/// When a copy reads its source.
/// - `usual`: in stream order, but pageable memory is read during the call if the target is on a device.
/// - `at_any_time`: memory that was allocated outside CUDA is read between the begin of the call and the end of the
///   copy. No order holds between that read and earlier work of the stream. Other memory is read in stream order, since
///   CCCL relies on that.
enum class source_access { usual, in_stream_order, during_call, at_any_time };

/// The devices that write the target and read the source of a copy; -1: the device of the stream.
struct copying_devices {
  int target = -1;
  int source = -1;
};

/// Copies in stream order. Pageable memory is host memory that the driver does not know. A copy from it to device
/// memory reads the source during the call; a copy to it waits for the stream. `wait` means a synchronous copy: it
/// waits unless both sides are device memory.
/// If the option `pageable_memory` gives the devices access to all host memory, no memory counts as pageable, because a
/// program may then rely on the order of the stream alone.
CUresult transfer(simulation& device, stream_ptr const& stream, std::uint64_t target, std::uint64_t source,
                  std::size_t bytes, bool wait, char const* call, source_access access = source_access::usual,
                  copying_devices devices = {}) GPUMEM_REQUIRES(simulation_mutex);

/// Reports two copies of one batch if one writes bytes that the other touches: copies of a batch have no order.
void report_overlaps(simulation& device, stream_ptr const& stream, std::span<CUdeviceptr const> targets,
                     std::span<CUdeviceptr const> sources, std::span<std::size_t const> bytes);

/// Fills `count` elements of `width` bytes in stream order. Refuses memory that the device cannot access.
CUresult fill(simulation& device, stream_ptr const& stream, std::uint64_t target, std::uint32_t value, unsigned width,
              std::size_t count);

} // namespace simulated
