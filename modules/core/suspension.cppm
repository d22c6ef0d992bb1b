// A suspended coroutine that another thread decides to resume and its owner may destroy before that.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:suspension;
import :coroutine;
import :executor;
import :std;

namespace gpumem::detail {

// A promise that is told of a stop, and says what runs instead of the coroutine: P2300's.
template <class Promise>
concept stoppable_promise = requires(Promise& promise) {
  { promise.unhandled_stopped() } -> std::convertible_to<std::coroutine_handle<>>;
};

// Whoever decides a suspended operation posts it and may not touch it afterwards, since it may run and be gone at once.
// Whoever destroys it must know that the post is over. Both pass through a gate that outlives all operations.
//
// posted_ | written under the gate: by the decider before the post, by the one who waits again before that
// false   | it is undecided, or the decider has yet to post; also once the operation waits a second time
// true    | it is in the executor's queue, or runs, or has run
//
// A coroutine that its executor has begun to resume must not be destroyed by another thread: nobody can make that safe.
class suspension : public work_item {
public:
  explicit suspension(executor* where) noexcept : executor_{where} {}

protected:
  ~suspension() = default;

  // Who awaits it.
  template <class Promise> void continue_with(std::coroutine_handle<Promise> continuation) noexcept {
    continuation_ = continuation;
    if constexpr (stoppable_promise<Promise>) {
      unhandled_stopped_ = [](std::coroutine_handle<> stopped) -> std::coroutine_handle<> {
        return std::coroutine_handle<Promise>::from_address(stopped.address()).promise().unhandled_stopped();
      };
    }
  }

  // Before anybody can decide it. Without an executor it resumes on the library thread, which is started if need be:
  // throws std::system_error, std::bad_alloc, and cuda_error in a forked child.
  void prepare();

  // What runs once it is decided, by whoever resumes it.
  std::coroutine_handle<> next() noexcept {
    return unhandled_stopped_ && end_stopped() ? unhandled_stopped_(continuation_) : continuation_;
  }

  // Whether a stop decided it; if so nobody will ask how it ended, and the coroutine is not resumed.
  virtual bool end_stopped() noexcept = 0;

  // On the executor, before it resumes. False: it waits again, and may be gone.
  virtual bool conclude() noexcept { return true; }

  // By the one who decided it; the last touch.
  void post() noexcept;
  // conclude() calls it before the operation waits again, and so before the resource can decide it a second time.
  void await_post() noexcept;

  // By the one who destroys it, when somebody else has decided it: waits until it is posted, then takes it back.
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
