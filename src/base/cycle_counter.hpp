// The processor's count of cycles, which a thread can read in less time than a clock.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gpumem::detail {

/// Returns whether the processor counts at a constant rate, and with one count for all its cores.
inline bool has_cycle_counter() noexcept {
#if defined(__x86_64__)
  constexpr unsigned read_in_order = 1u << 27, constant_rate = 1u << 8;
  unsigned a = 0, b = 0, c = 0, features = 0, power = 0;
  return __get_cpuid(0x80000001, &a, &b, &c, &features) && __get_cpuid(0x80000007, &a, &b, &c, &power) &&
         (features & read_in_order) != 0 && (power & constant_rate) != 0;
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

/// Returns the count in half the time of read_cycle_counter(). The processor may read it before earlier loads.
inline std::uint64_t read_cycle_counter_early() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return 0;
#endif
}

/// Returns the count. The processor reads it after all earlier loads, so that an allocation has a later count than an
/// earlier free of its address on another core.
inline std::uint64_t read_cycle_counter() noexcept {
#if defined(__x86_64__)
  unsigned core = 0;
  return __builtin_ia32_rdtscp(&core);
#elif defined(__aarch64__)
  std::uint64_t count = 0;
  asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(count) : : "memory");
  return count;
#else
  return 0;
#endif
}

} // namespace gpumem::detail
