// The device on which a replay runs.
// SPDX-License-Identifier: Apache-2.0
module;

#include <string>

export module replay:device;

import gpumem;
import :options;

namespace replay {

export struct chosen_device {
  gpumem::device device;
  bool simulated = false;
  std::string name; ///< product name, for people
};

/// Loads the simulated driver if it is chosen. Call it before any other use of a driver. Throws cuda_error,
/// std::runtime_error.
export chosen_device choose_device(device_choice choice);

/// Takes the findings of the simulated device. Traces and workloads free on other streams without an event between, and
/// no work touches the memory, so an unordered free is no error there. Throws std::runtime_error for any other finding.
export void accept_unordered_frees();

} // namespace replay
