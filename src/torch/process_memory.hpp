// Text about the memory that each process uses on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "versions.hpp"

#include <string>

namespace gpumem_torch {

/// Returns the sentences of PyTorch's out-of-memory error about the memory of each process on the device. Returns "" if
/// NVIDIA's management library is missing or tells nothing.
std::string describe_processes(DeviceIndex device);

} // namespace gpumem_torch
