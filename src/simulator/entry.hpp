// The start of every entry point of the driver. Runs the function by which a test schedules its threads, takes the lock
// and counts the call. Then checks the rules and runs some device work.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <utility>

#include "simulation.hpp"

namespace simulated {

template <std::size_t Size> struct entry_name {
  char text[Size];
  constexpr entry_name(char const (&name)[Size]) { std::copy_n(name, Size, text); }
};

/// Runs `body(device)` as the entry point `Name`. If the call is not allowed (by `Rules`, values of `rule`) or a
/// failure was injected for it, returns the error instead.
template <entry_name Name, unsigned Rules = plain, class Body> CUresult enter(Body&& body) noexcept try {
  if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  on_call.run();
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  if (CUresult const refused = device.admit(Name.text, Rules); refused != CUDA_SUCCESS) return refused;
  if constexpr ((Rules & (quiet | before_init)) == 0) device.advance();
  return std::forward<Body>(body)(device);
} catch (std::bad_alloc const&) { return CUDA_ERROR_OUT_OF_MEMORY; }

/// Runs `body(device, stream)` as an entry point that takes a stream.
template <entry_name Name, unsigned Rules = plain, class Body>
CUresult enter_on(CUstream handle, Body&& body) noexcept {
  return enter<Name, Rules>([&](simulation& device) GPUMEM_REQUIRES(simulation_mutex) {
    CUresult error;
    stream_ptr const on = device.resolve(handle, error);
    return on ? std::forward<Body>(body)(device, on) : error;
  });
}

/// Returns the allocation or the block of a pool that holds the address; none if there is none.
std::optional<allocation> known_at(simulation const& device, std::uint64_t address);

/// Performs cuMemcpyBatchAsync in its first form, which has the parameter `failed`. If `failed` is not null, sets it to
/// the index of the copy that failed, or to the maximum of its type if no copy failed.
CUresult copy_batch(CUdeviceptr* targets, CUdeviceptr* sources, size_t* bytes, size_t count,
                    CUmemcpyAttributes* attributes, size_t* first_copies, size_t attribute_count, size_t* failed,
                    CUstream stream);

/// Frees a block of a pool by a call that is in no stream. Does not wait: the caller guarantees that all uses are
/// complete.
CUresult free_pooled_by_host(simulation& device, memory_pool& pool, std::uint64_t address, char const* call);

} // namespace simulated
