// task: a coroutine that starts when it is awaited; what can be awaited, and the result of a coroutine.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <utility>
export module gpumem:task;
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

namespace gpumem {

export template <class T> class task;

namespace detail {

template <class T> class task_promise final : public coroutine_result<T> {
  // Resumes the awaiting coroutine by symmetric transfer. So the stack does not grow when many tasks run one after
  // another.
  struct final_awaiter {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<task_promise> self) const noexcept {
      return self.promise().continuation_;
    }
    void await_resume() const noexcept {}
  };

public:
  task<T> get_return_object() noexcept;
  std::suspend_always initial_suspend() const noexcept { return {}; }
  final_awaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { error_ = std::current_exception(); }

  // Marks the task as awaited. Returns false if it was awaited before.
  bool begin_await() noexcept { return !std::exchange(awaited_, true); }
  void continue_with(std::coroutine_handle<> continuation) noexcept { continuation_ = continuation; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

private:
  std::coroutine_handle<> continuation_ = std::noop_coroutine();
  std::exception_ptr error_;
  bool awaited_ = false;
};

} // namespace detail

/// A coroutine that starts when another coroutine awaits it. A task can be awaited once: a second `co_await` throws
/// std::logic_error and changes nothing. When the body ends, the awaiting coroutine resumes on the same thread. It gets
/// the result (T, T& or nothing) or the exception that the body threw.
///
/// The destructor destroys the frame and all objects in it. It must not run while the body runs; the body may be
/// suspended, have ended, or not have begun. Move-only; one thread at a time.
export template <class T = void> class [[nodiscard]] task {
public:
  /// The promise, by which the compiler makes a coroutine of a function that returns a task.
  using promise_type = detail::task_promise<T>;

  task(task&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
  task& operator=(task&& other) noexcept {
    task{std::move(other)}.swap(*this);
    return *this;
  }
  ~task() {
    if (frame_) frame_.destroy();
  }

  /// Returns false if the task was moved from. Awaiting such a task throws std::logic_error.
  bool valid() const noexcept { return static_cast<bool>(frame_); }
  /// Returns whether the body has ended.
  bool done() const noexcept { return frame_ && frame_.done(); }

  /// The `co_await` expression is the result as a value, or a reference if the result is T&.
  auto operator co_await() && noexcept { return rvalue_awaiter{base_awaiter{frame_}}; }
  /// The `co_await` expression is a reference to the result, which stays in the task.
  auto operator co_await() & noexcept { return lvalue_awaiter{base_awaiter{frame_}}; }

private:
  friend promise_type;
  using handle = std::coroutine_handle<promise_type>;

  struct base_awaiter {
    handle frame;
    bool refused = false;
    bool await_ready() noexcept {
      refused = frame && !frame.promise().begin_await();
      return !frame || refused;
    }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> continuation) const noexcept {
      frame.promise().continue_with(continuation);
      return frame;
    }
    promise_type& ended_promise() const {
      if (!frame) throw std::logic_error{"gpumem: a moved-from task was awaited"};
      if (refused) throw std::logic_error{"gpumem: a task was awaited twice"};
      frame.promise().rethrow();
      return frame.promise();
    }
  };
  struct rvalue_awaiter : base_awaiter {
    T await_resume() const { return this->ended_promise().take(); }
  };
  struct lvalue_awaiter : base_awaiter {
    decltype(auto) await_resume() const { return this->ended_promise().get(); }
  };

  explicit task(handle frame) noexcept : frame_{frame} {}
  void swap(task& other) noexcept { std::swap(frame_, other.frame_); }

  handle frame_;
};

template <class T> task<T> detail::task_promise<T>::get_return_object() noexcept {
  return task<T>{std::coroutine_handle<task_promise>::from_promise(*this)};
}

} // namespace gpumem
