// Tells by device files and the memory map of the process whether the process uses a real driver.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace simulated {

/// Returns the path of a real libcuda that is mapped into the process. Returns "" if there is none or no device file
/// exists. Opens no device.
std::string real_driver_in_use();

} // namespace simulated
