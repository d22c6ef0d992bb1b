// PyTorch's settings for its allocator: from PYTORCH_CUDA_ALLOC_CONF, PYTORCH_ALLOC_CONF, and calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "versions.hpp"

#include <cstddef>

namespace gpumem_torch {

/// Lets PyTorch read the settings of the environment. Called while PyTorch's own allocator is still the current one,
/// because the setting `backend` must name the current one. Throws c10::Error for settings that PyTorch does not
/// understand.
void read_settings();

/// Returns how many bytes a block gets for a request of `bytes`, by the setting roundup_power2_divisions.
std::size_t room_for(std::size_t bytes);

/// Returns the settings that a snapshot shows.
torch_cuda::AllocatorConfigInfo shown_settings();

} // namespace gpumem_torch
