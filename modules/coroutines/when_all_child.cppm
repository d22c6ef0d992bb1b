// when_all_child: a coroutine that awaits one awaitable and reports its end to a join_counter. sync_wait and when_all
// use it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:when_all_child;
import :awaitable;
import :coroutine;
import :coroutine_result;
import :std;

namespace gpumem::detail {

// Base class of objects that are told when children end. Any thread.
class join_counter {
public:
  // Called when a child threw.
  virtual void child_failed(std::exception_ptr error) noexcept = 0;
  // Called when a child has ended; if it threw, after child_failed(). Returns the coroutine that runs next on this
  // thread. The child's frame and the counter itself can be destroyed when this returns.
  virtual std::coroutine_handle<> child_finished() noexcept = 0;

protected:
  ~join_counter() = default;
};

template <class R> class when_all_child {
public:
  class promise_type final : public coroutine_result<R> {
    struct final_awaiter {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
        return self.promise().counter->child_finished();
      }
      void await_resume() const noexcept {}
    };

  public:
    when_all_child get_return_object() noexcept {
      return when_all_child{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { counter->child_failed(std::current_exception()); }

    join_counter* counter = nullptr;
  };

  when_all_child(when_all_child&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
  when_all_child& operator=(when_all_child&&) = delete;
  ~when_all_child() {
    if (frame_) frame_.destroy();
  }

  // Called once; runs the child on this thread until it suspends or ends.
  void start(join_counter& counter) {
    frame_.promise().counter = &counter;
    frame_.resume();
  }
  R take() { return frame_.promise().take(); }

private:
  explicit when_all_child(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
  std::coroutine_handle<promise_type> frame_;
};

// Returns a child that awaits `what`. If A is a reference, the child refers to the caller's object. Otherwise the
// child's frame keeps the value.
template <class A> when_all_child<await_value_t<A>> make_child(A what) { co_return co_await static_cast<A&&>(what); }

} // namespace gpumem::detail
