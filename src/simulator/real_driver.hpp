// Whether the real driver is here: by device files, and by what is mapped into the process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace simulated {

/// The path of a real libcuda that is mapped while its device files exist, or empty. Opens no device.
std::string real_driver_in_use();

} // namespace simulated
