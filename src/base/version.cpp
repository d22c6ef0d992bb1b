// The version with which the library was compiled.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <gpumem/version.h>
module gpumem:version.impl;
import :version;

namespace gpumem {

static_assert(GPUMEM_VERSION == GPUMEM_BUILT_VERSION, "version.h has another version than the project");

std::uint32_t version() noexcept { return GPUMEM_VERSION; }

} // namespace gpumem
