// Brings the library thread to the same state at the start of each run under a schedule. Include it after
// `import gpumem;` and after <chrono>: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Returns once the library thread runs and waits only for a post, so that a run from there can be replayed by its
/// seed. Sleeps one hour of virtual time, in which all timers of the next hour expire.
inline void wait_for_idle_library_thread() {
  gpumem::default_executor();
  gpumem::detail::sync::sleep_for(std::chrono::hours{1});
}

} // namespace test
