// The stop tokens that a wait takes: std::stop_token, those of P2300 (std::execution), and other types with the same
// functions.
// SPDX-License-Identifier: Apache-2.0
module;
#include <stop_token>
export module gpumem:stop_token;
import :std;

namespace gpumem {

namespace detail {
template <class Token, class Function> struct stop_callback_of {};
template <class Token, class Function>
  requires requires { typename Token::template callback_type<Function>; }
struct stop_callback_of<Token, Function> {
  using type = typename Token::template callback_type<Function>;
};
template <class Function> struct stop_callback_of<std::stop_token, Function> {
  using type = std::stop_callback<Function>;
};
struct stop_probe {
  void operator()() const noexcept {}
};
} // namespace detail

namespace extend {
/// The callback type of a token. Constructed with (token, function), it calls the function at a stop request, on the
/// thread that requests the stop. If the request came earlier, the constructor calls the function. The destructor waits
/// for a call in progress on another thread.
export template <class Token, class Function>
using stop_callback_t = typename detail::stop_callback_of<Token, Function>::type;

/// A token by which a wait can be asked to stop.
export template <class T>
concept stoppable_token = std::copyable<T> && requires(T const& token) {
  { token.stop_requested() } noexcept -> std::convertible_to<bool>;
  { token.stop_possible() } noexcept -> std::convertible_to<bool>;
  typename stop_callback_t<T, detail::stop_probe>;
} && std::constructible_from<stop_callback_t<T, detail::stop_probe>, T, detail::stop_probe>;

/// The token of a wait that is never stopped.
export struct never_stop_token {
  /// A callback that is never called.
  template <class Function> struct callback_type {
    /// Ignores the function.
    callback_type(never_stop_token, Function) noexcept {}
  };
  /// Returns false.
  static constexpr bool stop_requested() noexcept { return false; }
  /// Returns false.
  static constexpr bool stop_possible() noexcept { return false; }
  bool operator==(never_stop_token const&) const noexcept = default;
};
} // namespace extend

static_assert(stoppable_token<never_stop_token> && stoppable_token<std::stop_token>);

} // namespace gpumem
