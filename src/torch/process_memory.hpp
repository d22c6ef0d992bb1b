// The memory that processes have on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "versions.hpp"

#include <string>

namespace gpumem_torch {

/// Returns PyTorch's sentences on the memory that each process has on the device. Empty where NVIDIA's management
/// library is missing or tells nothing.
std::string describe_processes(DeviceIndex device);

} // namespace gpumem_torch
