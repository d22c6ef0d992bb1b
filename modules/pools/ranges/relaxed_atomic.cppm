// A value that threads look at while another changes it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:relaxed_atomic;
import :std;

namespace gpumem::detail {

/// So far apart in memory is what one thread writes all the time from what others do, bytes. Processors fetch more than
/// the line that was missed: with 128 bytes, which keep a pair of lines apart, each of 16 threads on an H200's host
/// lost its own lines to neighbours that went through theirs in order, and all of them a third of their speed.
export inline constexpr std::size_t false_sharing_distance = 512;

/// An atomic whose accesses are all relaxed, and whose changes are those of one thread at a time, the holder of some
/// lock: they read and write, and cost what those of a plain value cost. Where several threads do, changes may be lost.
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
