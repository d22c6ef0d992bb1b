// Names that differ between versions of PyTorch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/api/include/torch/version.h>

#define GPUMEM_TORCH_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace gpumem_torch {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using torch_cuda::DeviceStats;
#if GPUMEM_TORCH_AT_LEAST(11)
using annotation_entry = c10::CachingDeviceAllocator::AnnotationEntry;
using c10::MempoolId_t;
#else
using annotation_entry = torch_cuda::AnnotationEntry;
using c10::cuda::MempoolId_t;
#endif

} // namespace gpumem_torch
