// Reads PyTorch's settings for its allocator.
// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <c10/cuda/CUDAAllocatorConfig.h>

#include <bit>
#include <limits>
#include <string>

namespace gpumem_torch {

// From version 2.10 on, settings that apply to all kinds of devices have a class of their own.
#if GPUMEM_TORCH_AT_LEAST(10)
using shared_settings = c10::CachingAllocator::AcceleratorAllocatorConfig;
#else
using shared_settings = torch_cuda::CUDAAllocatorConfig;
#endif

void read_settings() {
  shared_settings::instance();
  torch_cuda::CUDAAllocatorConfig::instance();
}

// Divides each range between two powers of two into as many equal steps as the setting roundup_power2_divisions says,
// and rounds up to the next step. Steps of less than 512 bytes would change nothing.
std::size_t room_for(std::size_t bytes) {
  constexpr std::size_t least_step = 512;
  if (bytes <= 2 * least_step || bytes > std::numeric_limits<std::size_t>::max() / 2) return bytes;
  auto const divisions = shared_settings::roundup_power2_divisions(bytes);
  if (divisions <= 1 || bytes <= least_step * divisions) return bytes;
  auto const step = std::bit_floor(bytes) / divisions;
  return (bytes + step - 1) / step * step;
}

torch_cuda::AllocatorConfigInfo shown_settings() {
  torch_cuda::AllocatorConfigInfo info{};
  info.expandable_segments = true; // the memory of a pool grows and shrinks by pages
  info.last_allocator_settings = "backend:gpumem";
  auto const given = shared_settings::last_allocator_settings();
  if (!given.empty()) info.last_allocator_settings += "," + given;
  info.roundup_power2_divisions = shared_settings::roundup_power2_divisions();
  info.pinned_num_register_threads = torch_cuda::CUDAAllocatorConfig::pinned_num_register_threads();
  info.pinned_use_host_register = torch_cuda::CUDAAllocatorConfig::pinned_use_cuda_host_register();
  return info;
}

} // namespace gpumem_torch
