// Makes a pool, for code that cannot import the module.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>

namespace gpumem {

/// Returns a pool over a device's memory, like pool_resource{device{ordinal}, options} of the module. It uses virtual
/// pages if the device supports them and the options allow it. Throws std::invalid_argument, cuda_error, out_of_memory.
[[nodiscard]] any_pool make_pool(int device, pool_options options = {});

} // namespace gpumem
