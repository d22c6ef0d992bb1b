// A suspended coroutine that another thread resumes, unless its owner destroys it first.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:suspension;
import :coroutine;
import :executor;
import :std;

namespace gpumem::detail {

// A promise that is told of a stop and returns the coroutine that runs instead, as in P2300.
template <class Promise>
concept stoppable_promise = requires(Promise& promise) {
  { promise.unhandled_stopped() } -> std::convertible_to<std::coroutine_handle<>>;
};

// The thread that decides a suspended operation posts it, and must not touch it afterwards: it may run and be destroyed
// at once. The thread that destroys the operation must know that the post is over. Both take the lock of a gate that
// outlives all operations.
//
// posted_ | guarded by the gate: set by the deciding thread before the post, cleared before the operation waits again
// false   | the operation is undecided, or the deciding thread has not posted it yet
// true    | the operation is in the executor's queue, runs, or has run
//
// Another thread must not destroy a coroutine that its executor has begun to resume: no lock here makes that safe.
class suspension : public work_item {
public:
  explicit suspension(executor* where) noexcept : executor_{where} {}

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

  // Called before another thread can decide the operation. Without an executor it resumes on the library thread, which
  // is started if needed: throws std::system_error, std::bad_alloc, and cuda_error in a forked child.
  void prepare();

  // The executor on which the operation resumes; after prepare().
  executor const& resumes_on() const noexcept { return *executor_; }

  // Returns the coroutine that runs after the decision; the thread that resumes the operation calls it.
  std::coroutine_handle<> next() noexcept {
    return unhandled_stopped_ && end_stopped() ? unhandled_stopped_(continuation_) : continuation_;
  }

  // Whether a stop decided the operation. If so, its result is not read and the coroutine is not resumed.
  virtual bool end_stopped() noexcept = 0;

  // Runs on the executor, before the coroutine resumes. False: the operation waits again, and may be destroyed.
  virtual bool conclude() noexcept { return true; }

  // Called by the thread that decided the operation, as its last access to it.
  void post() noexcept;
  // Waits until the post is over. conclude() calls it before the operation waits again, and so before the resource can
  // decide it a second time.
  void await_post() noexcept;

  // Called by the thread that destroys the operation, after another thread has decided it: waits until it is posted,
  // then cancels the post.
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
