// The library thread under schedules, brought to where each run finds it. Include it after `import gpumem;` and after
// <chrono>: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Returns once the library thread runs and waits for nothing but a post: a run from there replays by its seed. Virtual
/// time passes all that was started for the next hour.
inline void wait_for_idle_library_thread() {
  gpumem::default_executor();
  gpumem::detail::sync::sleep_for(std::chrono::hours{1});
}

} // namespace test
