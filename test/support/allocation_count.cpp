// The counting operators. Sized and aligned deletes reach free() through the plain one.
// SPDX-License-Identifier: Apache-2.0
#include "allocation_count.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local std::size_t count = 0;
}

std::size_t test::host_allocations() noexcept { return count; }

#if __has_feature(thread_sanitizer) // has operators of its own, and calls this
extern "C" void __sanitizer_malloc_hook(void const volatile*, std::size_t) { ++count; }
#else
void* operator new(std::size_t bytes) {
  ++count;
  if (void* const p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc{};
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif
