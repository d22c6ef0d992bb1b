// Holds the result of a coroutine in its promise.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:coroutine_result;
import :std;

namespace gpumem::detail {

// Base class of a coroutine's promise. Keeps the result that the coroutine passed to return_value(). take() moves a
// value out and must be called at most once. With T = void it has return_void() in place of return_value().
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

// The type that holds a result of type R in a tuple or vector.
template <class R> struct element {
  using type = R;
};
template <class R> struct element<R&> {
  using type = std::reference_wrapper<R>;
};
template <> struct element<void> {
  using type = std::monostate;
};
template <class R> using element_t = typename element<R>::type;

} // namespace gpumem::detail
