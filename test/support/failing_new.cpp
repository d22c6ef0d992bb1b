// The operators new and delete that can fail.
// SPDX-License-Identifier: Apache-2.0
#include "failing_new.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

[[maybe_unused]] thread_local int successes_left = -1; // -1: no allocation fails

} // namespace

test::failing_new::failing_new(int successes) noexcept { successes_left = successes; }
test::failing_new::~failing_new() { successes_left = -1; }

#if !__has_feature(thread_sanitizer)
void* operator new(std::size_t bytes) {
  if (successes_left == 0) throw std::bad_alloc{};
  if (successes_left > 0) --successes_left;
  if (void* const p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc{};
}
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept { // AddressSanitizer's would not call the above
  try {
    return operator new(bytes);
  } catch (std::bad_alloc const&) { return nullptr; }
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif
