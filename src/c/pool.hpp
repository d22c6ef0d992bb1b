// Makes a pool of the C ABI from options that were already parsed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>
#include <gpumem/pool_options.hpp>

namespace gpumem::c {

/// Returns a pool whose one reference the caller owns. Throws what the pool's constructor throws.
gpumem_pool* make_pool(int device, pool_options options);

} // namespace gpumem::c
