// Where a coroutine leaves what it returns.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:coroutine_result;
import :std;

namespace gpumem::detail {

// Base of a promise: return_value() or return_void(), and the value to be taken once.
template <class T> class coroutine_result {
public:
  template <std::convertible_to<T> U> void return_value(U&& value) { value_.emplace(std::forward<U>(value)); }
  T& get() noexcept { return *value_; }
  T take() { return std::move(*value_); }

private:
  std::optional<T> value_;
};

template <class T> class coroutine_result<T&> {
public:
  void return_value(T& value) noexcept { value_ = std::addressof(value); }
  T& get() noexcept { return *value_; }
  T& take() noexcept { return *value_; }

private:
  T* value_ = nullptr;
};

template <> class coroutine_result<void> {
public:
  void return_void() noexcept {}
  void get() noexcept {}
  void take() noexcept {}
};

// What can be stored of what an await gives: an expiring value as a value.
template <class R> using kept_t = std::conditional_t<std::is_rvalue_reference_v<R>, std::remove_cvref_t<R>, R>;

// The same as a member of a tuple or a vector.
template <class R> struct element {
  using type = kept_t<R>;
};
template <class R> struct element<R&> {
  using type = std::reference_wrapper<R>;
};
template <> struct element<void> {
  using type = std::monostate;
};
template <class R> using element_t = typename element<R>::type;

} // namespace gpumem::detail
