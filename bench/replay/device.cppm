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

/// Takes the findings of the simulated device and throws std::runtime_error with the first one that the calls do not
/// explain. Traces and workloads have no events: a free on another stream than the allocation is unordered in them,
/// and with such `frees_elsewhere` so is the reuse of the block. No work touches the memory.
export void accept_unordered(bool frees_elsewhere);

} // namespace replay
