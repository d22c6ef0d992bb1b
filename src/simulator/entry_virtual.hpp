// The start of the entry points of virtual memory, and their common functions. Virtual memory belongs to no context:
// its calls need no current context, and virtual memory outlives the contexts of its device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "entry.hpp"

namespace simulated {

/// Runs `body(device)` as the entry point `Name`. Fails if the options say that devices have no virtual memory.
template <entry_name Name, unsigned Rules = plain, class Body> CUresult enter_virtual(Body&& body) noexcept {
  return enter<Name, Rules>([&](simulation& device) {
    return device.options().virtual_memory != 0 ? std::forward<Body>(body)(device) : CUDA_ERROR_NOT_SUPPORTED;
  });
}

inline bool granular(std::uint64_t value) noexcept { return value % page_granularity == 0; }

/// Returns the physical memory of a handle; null if there is none. Reports the use of a handle that was released.
std::shared_ptr<physical> resolve_memory(simulation& device, CUmemGenericAllocationHandle handle);

/// Gives the memory back to its device if it is mapped nowhere and no references to its handle are left.
void collect(simulation& device, physical const& memory);

} // namespace simulated
