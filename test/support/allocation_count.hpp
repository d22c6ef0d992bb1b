// Counts what the calling thread allocates on the host; one source of a program defines the operators.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace test {

/// Calls of operator new from this program's own code on this thread since it began.
std::size_t host_allocations() noexcept;

} // namespace test
