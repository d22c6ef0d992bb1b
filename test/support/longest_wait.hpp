// How long a test waits for what must happen.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdlib>

namespace gpumem_test {

/// Returns 10 seconds. The run of a planted fault, whose test waits in vain, shortens it by GPUMEM_WAIT_SECONDS.
inline std::chrono::seconds longest_wait() {
  auto const* const given = std::getenv("GPUMEM_WAIT_SECONDS");
  return std::chrono::seconds{given ? std::atoi(given) : 10};
}

} // namespace gpumem_test
