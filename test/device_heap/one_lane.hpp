// The lanes of a warp that has one, for kernels of one thread that run on the host; see device_heap_core.hpp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap_core.hpp>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace gpumem_test {

class one_lane {
public:
  static constexpr bool checks_frees = false;
  static std::uint32_t active() { return 1; }
  static std::uint32_t lane() { return 0; }
  static std::uint32_t processor() { return number.load(std::memory_order_relaxed); }
  static std::uint32_t noise() { return hints.fetch_add(1, std::memory_order_relaxed) * 2654435761u >> 7; }
  static std::uint32_t match(std::uint32_t active, std::uint32_t) { return active; }
  static std::uint32_t ballot(std::uint32_t, bool value) { return value ? 1 : 0; }
  template <class T> static T shuffle(std::uint32_t, T value, std::uint32_t) { return value; }
  static std::uint32_t reduce_or(std::uint32_t, std::uint32_t, std::uint32_t value) { return value; }
  static void sync(std::uint32_t) {}
  static void pause() {}
  static std::uint32_t count(std::uint32_t word) { return static_cast<std::uint32_t>(std::popcount(word)); }
  static std::uint32_t count(std::uint64_t word) { return static_cast<std::uint32_t>(std::popcount(word)); }
  static std::uint32_t first(std::uint32_t word) { return static_cast<std::uint32_t>(std::countr_zero(word)); }
  static std::uint32_t log2_ceiling(std::size_t value) { return static_cast<std::uint32_t>(std::bit_width(value - 1)); }

  using order = gpumem::heap_detail::order;
  template <order Order, class T> static T load(T* address) { return std::atomic_ref{*address}.load(); }
  template <class T> static T peek(T* address) { return load<order::relaxed>(address); }
  template <order Order, class T> static void store(T* address, T value) { std::atomic_ref{*address}.store(value); }
  template <order Order, class T> static T fetch_add(T* address, T value) {
    return std::atomic_ref{*address}.fetch_add(value);
  }
  template <order Order, class T> static T fetch_or(T* address, T value) {
    return std::atomic_ref{*address}.fetch_or(value);
  }
  template <order Order, class T> static T fetch_and(T* address, T value) {
    return std::atomic_ref{*address}.fetch_and(value);
  }
  template <order Order, class T> static T exchange(T* address, T value) {
    return std::atomic_ref{*address}.exchange(value);
  }
  template <order Order, class T> static bool compare_exchange(T* address, T& expected, T value) {
    return std::atomic_ref{*address}.compare_exchange_strong(expected, value);
  }
  template <class T> static void fetch_max(T* address, T value) {
    std::atomic_ref const current{*address};
    for (auto seen = current.load(); seen < value && !current.compare_exchange_weak(seen, value);) {}
  }
  static void clear(std::uint32_t* words, std::uint32_t count) {
    for (std::uint32_t i = 0; i != count; ++i) store<order::relaxed>(words + i, 0u);
  }
  static void bad_free(void*) {}

  static inline std::atomic<std::uint32_t> number{0}; // of the multiprocessor on which threads run
  static inline std::atomic<std::uint32_t> hints{1};
};

// The same without caches, so that each wrong free is found.
class checked_lane : public one_lane {
public:
  static constexpr bool checks_frees = true;
};

using heap_thread = gpumem::heap_detail::heap_core<one_lane>;
using checked_heap_thread = gpumem::heap_detail::heap_core<checked_lane>;

} // namespace gpumem_test
