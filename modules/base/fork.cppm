// Whether this process is a forked child.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:fork;

namespace gpumem::detail {

// True in a child, for good. Locks may then be held by threads that no longer exist: what would take one must not.
bool forked() noexcept;

} // namespace gpumem::detail
