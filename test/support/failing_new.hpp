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

/// While an object lives, each call of operator new on its thread throws std::bad_alloc, after the first `successes`.
class failing_new {
public:
  explicit failing_new(int successes = 0) noexcept;
  failing_new(failing_new const&) = delete;
  failing_new& operator=(failing_new const&) = delete;
  ~failing_new();
};

} // namespace test
