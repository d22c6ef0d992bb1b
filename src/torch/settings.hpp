// PyTorch's settings of its allocator: PYTORCH_CUDA_ALLOC_CONF, PYTORCH_ALLOC_CONF, and those of a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "versions.hpp"

#include <cstddef>

namespace gpumem_torch {

/// Lets PyTorch read the settings of the environment while its own allocator is still the current one, since the
/// setting `backend` must name that. Throws c10::Error for settings that PyTorch does not understand.
void read_settings();

/// Returns the bytes of a block for a request, as the setting roundup_power2_divisions has it now.
std::size_t room_for(std::size_t bytes);

/// Returns the settings that a snapshot shows.
torch_cuda::AllocatorConfigInfo shown_settings();

} // namespace gpumem_torch
