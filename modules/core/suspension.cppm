// A suspended coroutine that another thread resumes, unless its owner destroys it first, and the stop tokens that a
// wait takes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <stop_token>
export module gpumem:suspension;
import :coroutine;
import :executor;
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

namespace gpumem::detail {

// A coroutine's promise that accepts a stop, as in P2300: unhandled_stopped() returns the coroutine to run instead.
template <class Promise>
concept stoppable_promise = requires(Promise& promise) {
  { promise.unhandled_stopped() } -> std::convertible_to<std::coroutine_handle<>>;
};

// A suspended operation. One thread decides it (settles its outcome) and posts it to the executor, the object that
// chooses the thread on which the coroutine resumes. After the post the deciding thread must not touch the operation,
// which can run and be destroyed immediately. A thread that destroys the operation must know that the post is over. So
// both threads take the lock of a gate, an object that outlives all operations.
//
// The lock guards `posted_`. The deciding thread sets it before the post; it is cleared before the operation waits
// again.
// - false: the operation is undecided, or the deciding thread has not posted it yet;
// - true: the operation is in the executor's queue, runs, or has run.
//
// No lock here makes it safe to destroy a coroutine that an executor has begun to resume on another thread.
class suspension : public work_item {
public:
  explicit suspension(executor* executor) noexcept : executor_{executor} {}

protected:
  ~suspension() = default;

  // Sets the coroutine that awaits the operation.
  template <class Promise> void continue_with(std::coroutine_handle<Promise> continuation) noexcept {
    continuation_ = continuation;
    if constexpr (stoppable_promise<Promise>) {
      unhandled_stopped_ = [](std::coroutine_handle<> stopped) -> std::coroutine_handle<> {
        return std::coroutine_handle<Promise>::from_address(stopped.address()).promise().unhandled_stopped();
      };
    }
  }

  // Called before another thread can decide the operation. Without an executor, chooses the library thread and starts
  // it if needed. Throws std::system_error, std::bad_alloc, and cuda_error in a forked child.
  void prepare();

  // Returns the executor on which the operation resumes. Called after prepare().
  executor const& resumes_on() const noexcept { return *executor_; }

  // Returns the coroutine that runs after the decision. Called by the thread that resumes the operation.
  std::coroutine_handle<> next() noexcept {
    return unhandled_stopped_ && end_stopped() ? unhandled_stopped_(continuation_) : continuation_;
  }

  // Returns whether a stop decided the operation. If so, the result is not read and the coroutine is not resumed.
  virtual bool end_stopped() noexcept = 0;

  // Runs on the executor, before the coroutine resumes. Returns false if the operation waits again; another thread can
  // then destroy the operation at any time.
  virtual bool conclude() noexcept { return true; }

  // Posts the operation. Called by the thread that decided the operation, as its last access to it.
  void post() noexcept;
  // Waits until the post is over. conclude() calls this before the operation waits again: otherwise another thread
  // could decide the operation a second time during the post.
  void await_post() noexcept;

  // Called by the thread that destroys the operation, after another thread has decided it. Waits until the operation is
  // posted, then removes it from the executor's queue.
  void take_back() noexcept;

private:
  void resume() noexcept final {
    if (conclude()) next().resume();
  }

  executor* executor_;
  std::coroutine_handle<> continuation_;
  std::coroutine_handle<> (*unhandled_stopped_)(std::coroutine_handle<>) = nullptr;
  unsigned gate_ = 0;
  bool posted_ = false;
};

} // namespace gpumem::detail
