// A coroutine that awaits one thing and tells a meeting point when it is over: what sync_wait and when_all are made of.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:joined;
import :awaitable;
import :coroutine;
import :coroutine_result;
import :std;

namespace gpumem::detail {

// Where joined coroutines meet. Any thread.
class meeting_point {
public:
  // One of them threw.
  virtual void failed(std::exception_ptr error) noexcept = 0;
  // One of them is over, after failed() if it threw: what is to run next on this thread. Its frame, and the point
  // itself, may be gone when this returns.
  virtual std::coroutine_handle<> arrived() noexcept = 0;

protected:
  ~meeting_point() = default;
};

template <class R> class joined {
public:
  class promise_type final : public coroutine_result<R> {
    struct final_awaiter {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
        return self.promise().meets->arrived();
      }
      void await_resume() const noexcept {}
    };

  public:
    joined get_return_object() noexcept { return joined{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { meets->failed(std::current_exception()); }

    meeting_point* meets = nullptr;
  };

  joined(joined&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
  joined& operator=(joined&&) = delete;
  ~joined() {
    if (frame_) frame_.destroy();
  }

  // Once; runs it on this thread until it suspends.
  void start(meeting_point& meets) {
    frame_.promise().meets = &meets;
    frame_.resume();
  }
  R take() { return frame_.promise().take(); }

private:
  explicit joined(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
  std::coroutine_handle<promise_type> frame_;
};

// Awaits what it is given: a reference, or a value that it keeps in its frame.
template <class A> joined<kept_t<await_result_t<A>>> join(A what) { co_return co_await static_cast<A&&>(what); }

} // namespace gpumem::detail
