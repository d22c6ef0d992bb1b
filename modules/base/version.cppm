// The version of the interfaces, and of the library that was linked.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/version.h>
export module gpumem:version;
import :std;

export namespace gpumem {

/// The version of the interfaces that were imported. The macros of <gpumem/version.h> have the same values.
inline constexpr int version_major = GPUMEM_VERSION_MAJOR;
inline constexpr int version_minor = GPUMEM_VERSION_MINOR; ///< grows with each release that adds names
inline constexpr int version_patch = GPUMEM_VERSION_PATCH; ///< grows with each release that only corrects

/// Returns the version of the compiled library, in the form of GPUMEM_VERSION: 1.2.3 is 10203. Any thread may call it.
[[nodiscard]] std::uint32_t version() noexcept;

} // namespace gpumem
