// The options of a pool, exported.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
export module gpumem:pool_options;

export namespace gpumem {
using gpumem::hardening_options;
using gpumem::pool_options;
using gpumem::reuse_policy;
} // namespace gpumem
