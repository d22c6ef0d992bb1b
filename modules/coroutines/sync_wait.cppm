// sync_wait: awaits an awaitable from a function that is no coroutine.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <coroutine>
#include <mutex>
export module gpumem:sync_wait;
import :coroutine;
import :std;
import :sync;
import :task;
import :when_all;

namespace gpumem {

namespace detail {

class sync_signal final : public join_counter {
public:
  // Throws cuda_error in a forked child: the threads that would signal do not exist there.
  sync_signal();
  void child_failed(std::exception_ptr error) noexcept override { error_ = std::move(error); }
  std::coroutine_handle<> child_finished() noexcept override;
  // Blocks until the coroutine has ended; throws the exception that it threw.
  void wait();

private:
  sync::mutex mutex_;
  sync::condition wake_;
  std::exception_ptr error_;
  bool arrived_ GPUMEM_GUARDED_BY(mutex_) = false;
};

} // namespace detail

/// Awaits `work` from a function that is no coroutine. It starts `work` on the calling thread and
/// blocks until `work` ends, on this or another thread. Returns the result: a reference if the result is an
/// lvalue reference, otherwise a value. If the awaited work throws, throws that exception, for instance
/// std::logic_error for a task that was awaited before.
///
/// sync_wait runs no executor. If the awaited work must resume on the calling thread, sync_wait never returns.
export template <awaitable A> await_value_t<A> sync_wait(A&& work) {
  detail::sync_signal signal;
  auto run = detail::make_child<A&&>(static_cast<A&&>(work));
  run.start(signal);
  signal.wait();
  return run.take();
}

} // namespace gpumem
