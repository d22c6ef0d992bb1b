// Which device a replay runs on.
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
  std::string name; ///< as people know it
};

/// Loads the simulated driver if it is chosen; to be called before anything else asks for a driver. Throws
/// cuda_error, std::runtime_error.
export chosen_device choose_device(device_choice choice);

} // namespace replay
