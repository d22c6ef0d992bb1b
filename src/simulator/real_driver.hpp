// Finds out if the process uses a real driver: by device files and by the memory map of the process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace simulated {

/// Returns the path of a real libcuda that is mapped into the process; empty if there is none or no device file exists.
/// Opens no device.
std::string real_driver_in_use();

} // namespace simulated
