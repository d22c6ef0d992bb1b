// Concepts of types that any coroutine can await.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:awaitable;
import :coroutine;
import :std;

namespace gpumem {

namespace extend {
/// The operation on which `co_await` suspends one coroutine.
export template <class T>
concept awaiter = requires(T& operation, std::coroutine_handle<> continuation) {
  { operation.await_ready() } -> std::convertible_to<bool>;
  operation.await_suspend(continuation);
  operation.await_resume();
};
} // namespace extend

namespace detail {

template <class A>
concept has_member_co_await = requires(A&& a) { static_cast<A&&>(a).operator co_await(); };
template <class A>
concept has_free_co_await = requires(A&& a) { operator co_await(static_cast<A&&>(a)); };

// Returns the awaiter that `co_await` uses if the promise has no await_transform().
template <class A> decltype(auto) awaiter_of(A&& a) {
  if constexpr (has_member_co_await<A>) {
    return static_cast<A&&>(a).operator co_await();
  } else if constexpr (has_free_co_await<A>) {
    return operator co_await(static_cast<A&&>(a));
  } else {
    return static_cast<A&&>(a);
  }
}

} // namespace detail

namespace extend {
/// A type that any coroutine can await: it has `operator co_await` as a member or a free function, or is an awaiter.
export template <class T>
concept awaitable = requires(T&& t) {
  { detail::awaiter_of(static_cast<T&&>(t)) } -> awaiter;
};

/// The type of a `co_await` expression on an awaitable of type T.
export template <awaitable T> using await_result_t = decltype(detail::awaiter_of(std::declval<T>()).await_resume());

/// The same as await_result_t, but a value type in place of an rvalue reference, so that the result can outlive the
/// awaiter.
export template <awaitable T>
using await_value_t = std::conditional_t<std::is_rvalue_reference_v<await_result_t<T>>,
                                         std::remove_cvref_t<await_result_t<T>>, await_result_t<T>>;

} // namespace extend

} // namespace gpumem
