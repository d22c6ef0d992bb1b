// A value that threads look at while another changes it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:relaxed;
import :std;

namespace gpumem::detail {

/// An atomic whose accesses are all relaxed, and whose changes are those of one thread at a time, the holder of some
/// lock: they read and write, and cost what those of a plain value cost. Where several threads do, changes may be lost.
export template <class T> class relaxed {
public:
  constexpr relaxed() noexcept = default;
  constexpr relaxed(T value) noexcept : value_{value} {}
  relaxed(relaxed const&) = delete;
  inline relaxed& operator=(relaxed const& from) noexcept { return *this = static_cast<T>(from); }
  inline relaxed& operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  inline operator T() const noexcept { return value_.load(std::memory_order_relaxed); }
  inline T operator->() const noexcept { return *this; }

  inline relaxed& operator+=(T by) noexcept { return *this = static_cast<T>(*this) + by; }
  inline relaxed& operator-=(T by) noexcept { return *this = static_cast<T>(*this) - by; }
  inline relaxed& operator++() noexcept { return *this += T{1}; }

private:
  std::atomic<T> value_{};
};

} // namespace gpumem::detail
