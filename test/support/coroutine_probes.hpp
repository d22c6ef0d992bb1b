// Coroutines and awaitables with which tests start, park, resume and move other coroutines. Include it after
// `import gpumem;`: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Parks the coroutine that awaits it; the test resumes or destroys it.
struct parked {
  std::coroutine_handle<>* place;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> h) const noexcept { *place = h; }
  void await_resume() const noexcept {}
};

/// A coroutine that starts at once and stays suspended at its end. The test destroys it, wherever it is suspended.
class started {
public:
  struct promise_type {
    started get_return_object() { return started{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() { throw; }
  };
  started(started&& other) noexcept : frame_{other.frame_} { other.frame_ = nullptr; }
  started& operator=(started&&) = delete;
  ~started() { destroy(); }
  bool done() const noexcept { return frame_.done(); }
  void destroy() noexcept {
    if (frame_) frame_.destroy();
    frame_ = nullptr;
  }

private:
  explicit started(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
  std::coroutine_handle<promise_type> frame_;
};

/// Runs a task until it suspends.
inline started start(gpumem::task<> what) { co_await static_cast<gpumem::task<>&&>(what); }

/// Resumes the awaiting coroutine on the executor.
class hop final : public gpumem::extend::work_item {
public:
  explicit hop(gpumem::executor& to) noexcept : to_{to} {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> h) noexcept {
    continuation_ = h;
    to_.post(*this);
  }
  void await_resume() const noexcept {}

private:
  void resume() noexcept override { continuation_.resume(); }
  gpumem::executor& to_;
  std::coroutine_handle<> continuation_;
};

/// A stop token that reports no stop when asked, and whose stop is requested before the callback is registered: the
/// callback's constructor calls the function.
struct late_token {
  template <class Function> struct callback_type {
    callback_type(late_token, Function f) noexcept { f(); }
  };
  bool stop_requested() const noexcept { return false; }
  bool stop_possible() const noexcept { return true; }
  bool operator==(late_token const&) const = default;
};

} // namespace test
