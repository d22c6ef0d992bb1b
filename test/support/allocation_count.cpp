// The operators new and delete that count. Only calls from this program's own code count: the simulated device is a
// shared library and may allocate. The sized and aligned deletes reach free() through the plain delete.
// SPDX-License-Identifier: Apache-2.0
#include "allocation_count.hpp"

#include <cstdlib>
#include <new>

extern "C" char const __executable_start, etext;

namespace {

thread_local std::size_t count = 0;

[[maybe_unused]] void count_call(void const* from) noexcept {
  auto const* const caller = static_cast<char const*>(from);
  if (caller >= &__executable_start && caller < &etext) ++count;
}

} // namespace

std::size_t test::host_allocations() noexcept { return count; }

#if __has_feature(thread_sanitizer) // it has its own operators and calls this hook
extern "C" void __sanitizer_malloc_hook(void const volatile*, std::size_t) { ++count; }
#else
void* operator new(std::size_t bytes) {
  count_call(__builtin_return_address(0));
  if (void* const p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc{};
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif
