// The operators new and delete that can fail.
// SPDX-License-Identifier: Apache-2.0
#include "failing_new.hpp"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include <dlfcn.h>

namespace {

[[maybe_unused]] thread_local int successes_left = -1; // -1: no allocation fails
[[maybe_unused]] thread_local bool one_fails = false;
[[maybe_unused]] thread_local bool any_refused = false;

/// Returns whether the simulated driver, or the C++ library that it shares, made the call. Strings are made in the
/// latter; those of the library under test then succeed too.
[[maybe_unused]] bool from_driver(void* caller) noexcept {
  Dl_info where{};
  if (dladdr(caller, &where) == 0 || where.dli_fname == nullptr) return false;
  return std::strstr(where.dli_fname, "simulator_driver") != nullptr ||
         std::strstr(where.dli_fname, "libstdc++") != nullptr;
}

[[maybe_unused]] void count(void* caller) {
  if (successes_left < 0 || from_driver(caller)) return;
  if (successes_left > 0) {
    --successes_left;
    return;
  }
  any_refused = true;
  if (one_fails) successes_left = -1;
  throw std::bad_alloc{};
}

} // namespace

test::failing_new::failing_new(int successes, failing which) noexcept {
  one_fails = which == failing::only_one;
  any_refused = false;
  successes_left = successes;
}
test::failing_new::~failing_new() { successes_left = -1; }
bool test::failing_new::refused() noexcept { return any_refused; }

#if !__has_feature(thread_sanitizer)
namespace {

void* make(std::size_t bytes, std::size_t unit, void* caller) {
  count(caller);
  if (bytes == 0) bytes = 1;
  void* const made = unit == 0 ? std::malloc(bytes) : std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (made == nullptr) throw std::bad_alloc{};
  return made;
}
void* try_make(std::size_t bytes, std::size_t unit, void* caller) noexcept {
  try {
    return make(bytes, unit, caller);
  } catch (std::bad_alloc const&) { return nullptr; }
}

} // namespace

// All forms are defined, since those of the C++ library would count as calls by it.
using unit = std::align_val_t;
#define CALLER __builtin_return_address(0)
void* operator new(std::size_t n) { return make(n, 0, CALLER); }
void* operator new[](std::size_t n) { return make(n, 0, CALLER); }
void* operator new(std::size_t n, unit a) { return make(n, static_cast<std::size_t>(a), CALLER); }
void* operator new[](std::size_t n, unit a) { return make(n, static_cast<std::size_t>(a), CALLER); }
void* operator new(std::size_t n, std::nothrow_t const&) noexcept { return try_make(n, 0, CALLER); }
void* operator new[](std::size_t n, std::nothrow_t const&) noexcept { return try_make(n, 0, CALLER); }
void* operator new(std::size_t n, unit a, std::nothrow_t const&) noexcept {
  return try_make(n, static_cast<std::size_t>(a), CALLER);
}
void* operator new[](std::size_t n, unit a, std::nothrow_t const&) noexcept {
  return try_make(n, static_cast<std::size_t>(a), CALLER);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, unit) noexcept { std::free(p); }
void operator delete[](void* p, unit) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, unit) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, unit) noexcept { std::free(p); }
#endif
