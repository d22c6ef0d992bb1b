// Lets host allocations of the calling thread fail. failing_new.cpp defines the operators for the whole program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// ThreadSanitizer has operators of its own: under it no allocation fails, and tests skip what needs that.
#if __has_feature(thread_sanitizer)
inline constexpr bool new_can_fail = false;
#else
inline constexpr bool new_can_fail = true;
#endif

/// Which allocations fail after the first successes.
enum class failing {
  all,      ///< each one
  only_one, ///< one, and those after it succeed again
};

/// While an object lives, calls of operator new on its thread throw std::bad_alloc, after the first `successes`. Calls
/// by the simulated driver succeed, and do not count: a real driver answers with an error of its own.
class failing_new {
public:
  explicit failing_new(int successes = 0, failing which = failing::all) noexcept;
  failing_new(failing_new const&) = delete;
  failing_new& operator=(failing_new const&) = delete;
  ~failing_new();

  /// Returns whether an allocation failed since the object was made.
  static bool refused() noexcept;
};

} // namespace test
