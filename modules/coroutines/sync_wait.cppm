// From plain code into a coroutine and back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <mutex>
export module gpumem:sync_wait;
import :awaitable;
import :coroutine;
import :coroutine_result;
import :std;
import :sync;
import :when_all_child;

namespace gpumem {

namespace detail {

class sync_signal final : public join_counter {
public:
  // Throws cuda_error in a forked child, where the threads that would signal are missing.
  sync_signal();
  void child_failed(std::exception_ptr error) noexcept override { error_ = std::move(error); }
  std::coroutine_handle<> child_finished() noexcept override;
  // Returns when the coroutine has arrived; throws what it threw.
  void wait();

private:
  sync::mutex mutex_;
  sync::condition wake_;
  std::exception_ptr error_;
  bool arrived_ = false;
};

} // namespace detail

/// Awaits on the calling thread: starts it here, and blocks until it is over, wherever it resumes meanwhile. Gives its
/// result (a reference if it gives one, an expiring value as a value), or throws what it threw. It runs no executor: on
/// a thread that the awaited work needs to resume on, it never returns.
export template <awaitable A> await_value_t<A> sync_wait(A&& what) {
  detail::sync_signal signal;
  auto run = detail::make_child<A&&>(static_cast<A&&>(what));
  run.start(signal);
  signal.wait();
  return run.take();
}

} // namespace gpumem
