// Counts the host allocations of the calling thread. allocation_count.cpp defines the operators for the whole program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace test {

/// Returns how many times this program's own code has called operator new on this thread.
std::size_t host_allocations() noexcept;

} // namespace test
