// `co_await completion(stream)`: waits for GPU work.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:completion;
import :coroutine;
import :cuda;
import :event;
import :executor;
import :poll_queue;
import :reactor;
import :std;
import :stop_token;
import :stream;
import :stream_timeline;
import :suspension;

namespace gpumem {

/// Options of a wait for the GPU. `resume_on` is the executor that resumes the coroutine; null: the library thread.
export struct completion_options {
  gpumem::latency latency = gpumem::latency::balanced; ///< how often the driver is polled
  executor* resume_on = nullptr;                       ///< null: the library thread
};

namespace detail {

// The target of a wait: all work enqueued on a stream, or the work that an event of the user captured. Copyable.
class completion_target {
public:
  explicit completion_target(stream_ref stream) noexcept : stream_{stream} {}
  explicit completion_target(event const& event) noexcept : stream_{CUstream{}}, event_{&event} {}

  // Asks the driver and returns whether the work is complete; if so, publishes that to the timeline. Throws.
  bool poll() const;
  // Blocks the calling thread in the driver until the work is complete. Throws.
  void wait() const;
  // Returns the poll queue to which the wait is added, if it resumes on this executor. Throws.
  poll_queue& queue(executor const& resumes) const;
  // Returns the point of the work: of the user's event, or of a pooled event that it records on the stream. It stores a
  // pooled event in `recorded`, retains the timeline, and the caller must return both. Throws.
  stream_point record_event(pooled_event*& recorded) const;

private:
  stream_ref stream_;
  event const* event_ = nullptr;
};

class completion_wait : public suspension, private pending_wait {
public:
  completion_wait(completion_target const& target, completion_options const& options) noexcept
      : suspension{options.resume_on}, pending_wait{options.latency}, target_{target} {}

protected:
  ~completion_wait() = default;
  // Removes the wait from the reactor and returns the event. The destructor of the final class calls it: in the
  // destructor of a base the virtual complete(), which the reactor may be about to call, would be another function.
  void cancel_and_release() noexcept;
  bool poll() const { return target_.poll(); }
  void refuse_stopped() noexcept { outcome_ = ending::stopped; }
  bool stopped() const noexcept { return outcome_ == ending::stopped; }
  // Prepares the executor and finds the poll queue. Called before add_wait() and before a stop callback exists. Throws.
  void prepare();
  // Adds the wait to the reactor. Returns false if the wait has ended already. If it throws, nothing was added. If it
  // returns true, the object may be destroyed already.
  bool add_wait();
  void stop() noexcept;
  // Throws the error or stop that ended the wait; nothing after completion.
  void finish();
  // Returns whether a stop ended the wait; if so, ends the operation.
  bool finish_stopped() noexcept;

private:
  enum class ending { complete, stopped, refused };

  void complete(CUresult result) noexcept override;
  void end(ending how, CUresult result) noexcept;
  void return_event() noexcept;

  completion_target target_;
  pooled_event* recorded_ = nullptr;
  bool registered_ = false; // the reactor holds the wait, or has called complete()
  ending outcome_ = ending::complete;
  CUresult result_ = CUDA_SUCCESS;
};

} // namespace detail

namespace detail {
struct awaitable_completion;
} // namespace detail

namespace extend {
export template <stoppable_token Token> class completion_awaitable;

/// The operation of a completion_awaitable in one coroutine. Not movable. Its destructor ends the wait. Destroy it only
/// while nothing can resume the coroutine: on its executor's thread, or while the executor does not run.
export template <stoppable_token Token> class completion_operation final : public detail::completion_wait {
public:
  ~completion_operation() {
    callback_.reset();
    this->cancel_and_release();
  }

  /// Returns true, and the coroutine does not suspend, if the work is complete.
  bool await_ready() {
    if (!token_.stop_requested()) return this->poll();
    this->refuse_stopped();
    return false; // await_suspend() knows whether the promise has unhandled_stopped()
  }

  /// After a stop, calls unhandled_stopped() of the promise if it has that.
  template <class Promise> auto await_suspend(std::coroutine_handle<Promise> continuation) {
    this->continue_with(continuation);
    if constexpr (detail::stoppable_promise<Promise>) {
      return begin() ? std::coroutine_handle<>{std::noop_coroutine()} : this->next();
    } else {
      return begin();
    }
  }

  /// Throws what completion_awaitable says.
  void await_resume() {
    callback_.reset();
    this->finish();
  }

private:
  friend class completion_awaitable<Token>;
  completion_operation(detail::completion_target const& target, completion_options const& options, Token token) noexcept
      : detail::completion_wait{target, options}, token_{std::move(token)} {}

  struct on_stop {
    completion_operation* operation;
    void operator()() const noexcept { operation->stop(); }
  };

  // Returns false if the wait has ended already. Registers the stop callback before add_wait(), since after that the
  // coroutine may be resumed and its frame destroyed.
  bool begin() {
    if (this->stopped()) return false;
    this->prepare();
    if (token_.stop_possible()) callback_.emplace(token_, on_stop{this});
    return this->add_wait();
  }

  bool end_stopped() noexcept override {
    if (!this->finish_stopped()) return false;
    callback_.reset();
    return true;
  }

  Token token_;
  std::optional<stop_callback_t<Token, on_stop>> callback_;
};

/// Describes a wait for the GPU; small and movable. Start it by `co_await`, or by wait() outside a coroutine. The wait
/// completes when the host has seen the work complete: the host may then read memory that the work wrote, and pools
/// know that the work is complete.
///
/// If the work is complete at once, the coroutine does not suspend and allocates no host memory. Otherwise a thread
/// polls the driver at the rate of the option `latency`, and the coroutine resumes through its executor. The library
/// thread polls for coroutines that resume there, a thread per device for all others.
///
/// Throws cuda_error for a driver error, also on a lost device. Throws acquire_error if the wait was stopped or the
/// stream captures a graph, and std::bad_alloc, std::system_error. If the promise has unhandled_stopped(), a stop does
/// not resume the coroutine but the handle that unhandled_stopped() returns.
export template <stoppable_token Token = never_stop_token> class [[nodiscard]] completion_awaitable {
public:
  /// Begins the wait.
  completion_operation<Token> operator co_await() const noexcept { return {target_, options_, token_}; }

  /// Blocks the calling thread in the driver until completion. Throws as co_await. Ignores the stop token and options.
  void wait() const { target_.wait(); }

private:
  friend struct detail::awaitable_completion;
  completion_awaitable(detail::completion_target const& target, completion_options const& options, Token token) noexcept
      : target_{target}, options_{options}, token_{std::move(token)} {}

  detail::completion_target target_;
  completion_options options_;
  Token token_;
};
} // namespace extend

namespace detail {
// Makes completion_awaitables, whose constructor is private.
struct awaitable_completion {
  template <class Target, class Token>
  static completion_awaitable<Token> of(Target const& target, completion_options const& options, Token token) noexcept {
    return {completion_target{target}, options, std::move(token)};
  }
};
} // namespace detail

/// Returns a wait for all work that is enqueued on the stream at the time of the co_await. The stream must live until
/// then. Any thread.
export template <stoppable_token Token = never_stop_token>
completion_awaitable<Token> completion(stream_ref stream, completion_options options = {}, Token token = {}) noexcept {
  return detail::awaitable_completion::of(stream, options, std::move(token));
}

/// Returns a wait for the work that the event has captured at the time of the co_await; no wait if the event was never
/// recorded. The event must not be destroyed or recorded again before the wait ends. Any thread.
export template <stoppable_token Token = never_stop_token>
completion_awaitable<Token> completion(event const& happened, completion_options options = {},
                                       Token token = {}) noexcept {
  return detail::awaitable_completion::of(happened, options, std::move(token));
}

} // namespace gpumem
