// An atomic value that one thread at a time changes and any thread may read.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:relaxed_atomic;
import :std;

namespace gpumem::detail {

/// The distance in bytes between data that different threads write all the time. Processors fetch more than the cache
/// line that missed. With a distance of 128 bytes, two lines, 16 threads on an H200's host lost a third of their speed.
/// A thread that read its own data in order made the processor fetch the next thread's lines too.
export inline constexpr std::size_t false_sharing_distance = 512;

/// An atomic with relaxed loads and stores only, which cost as much as those of a plain value. Only the holder of a
/// lock may change it: `+=`, `-=` and `++` load and then store, so changes by two threads at once would be lost.
export template <class T> class relaxed_atomic {
public:
  constexpr relaxed_atomic() noexcept = default;
  constexpr relaxed_atomic(T value) noexcept : value_{value} {}
  relaxed_atomic(relaxed_atomic const&) = delete;
  inline relaxed_atomic& operator=(relaxed_atomic const& from) noexcept { return *this = static_cast<T>(from); }
  inline relaxed_atomic& operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  inline operator T() const noexcept { return value_.load(std::memory_order_relaxed); }
  inline T operator->() const noexcept { return *this; }

  inline relaxed_atomic& operator+=(T by) noexcept { return *this = static_cast<T>(*this) + by; }
  inline relaxed_atomic& operator-=(T by) noexcept { return *this = static_cast<T>(*this) - by; }
  inline relaxed_atomic& operator++() noexcept { return *this += T{1}; }

private:
  std::atomic<T> value_{};
};

} // namespace gpumem::detail
