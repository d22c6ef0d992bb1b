// How the entry points of virtual memory begin, and what they share. Virtual memory is of no context: it needs none,
// and outlives those of its device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "entry.hpp"

namespace simulated {

/// Runs `body(engine)` as the entry point `Name`, where the devices have virtual memory.
template <entry_name Name, unsigned Rules = plain, class Body> CUresult enter_virtual(Body&& body) noexcept {
  return enter<Name, Rules>([&](simulation& device, locked&) {
    return device.options().virtual_memory != 0 ? std::forward<Body>(body)(device) : CUDA_ERROR_NOT_SUPPORTED;
  });
}

inline bool granular(std::uint64_t value) noexcept { return value % page_granularity == 0; }

/// The memory behind a handle, or null; a handle that was released is a finding.
std::shared_ptr<physical> resolve_memory(simulation& device, CUmemGenericAllocationHandle handle);

/// Gives the memory back to its device, if it is mapped nowhere and nobody refers to its handle.
void collect(simulation& device, const physical& which);

} // namespace simulated
