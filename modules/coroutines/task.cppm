// task: a lazy coroutine that one other coroutine awaits.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <utility>
export module gpumem:task;
import :coroutine;
import :coroutine_result;
import :std;

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
    promise_type& finished() const {
      if (!frame) throw std::logic_error{"gpumem: a moved-from task was awaited"};
      if (refused) throw std::logic_error{"gpumem: a task was awaited twice"};
      frame.promise().rethrow();
      return frame.promise();
    }
  };
  struct rvalue_awaiter : base_awaiter {
    T await_resume() const { return this->finished().take(); }
  };
  struct lvalue_awaiter : base_awaiter {
    decltype(auto) await_resume() const { return this->finished().get(); }
  };

  explicit task(handle frame) noexcept : frame_{frame} {}
  void swap(task& other) noexcept { std::swap(frame_, other.frame_); }

  handle frame_;
};

template <class T> task<T> detail::task_promise<T>::get_return_object() noexcept {
  return task<T>{std::coroutine_handle<task_promise>::from_promise(*this)};
}

} // namespace gpumem
