// The version of the interfaces, and of the library that was linked.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/version.h>
export module gpumem:version;
import :std;

export namespace gpumem {

/// The first number of the version of the imported interfaces. The macros of <gpumem/version.h> have the values of the
/// three constants.
inline constexpr int version_major = GPUMEM_VERSION_MAJOR;
inline constexpr int version_minor = GPUMEM_VERSION_MINOR; ///< the second number of the version
inline constexpr int version_patch = GPUMEM_VERSION_PATCH; ///< the third number of the version

/// Returns the version of the compiled library, in the form of GPUMEM_VERSION: 1.2.3 is 10203. Any thread.
[[nodiscard]] std::uint32_t version() noexcept;

} // namespace gpumem
