// `co_await completion(stream)`: a coroutine waits for GPU work.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:completion;
import :coroutine;
import :cuda;
import :event;
import :executor;
import :reactor;
import :std;
import :stream;
import :stream_timeline;
import :suspension;

namespace gpumem {

/// Options of a wait for the GPU.
export struct completion_options {
  gpumem::latency latency = gpumem::latency::balanced; ///< how often the driver is polled
  executor* resume_on = nullptr;                       ///< resumes the coroutine; null: the library thread
};

namespace detail {

// The target of a wait: all work enqueued on a stream, or the work that was enqueued before the user recorded an event.
// All functions can throw.
class completion_target {
public:
  explicit completion_target(stream_ref stream) noexcept : stream_{stream} {}
  explicit completion_target(event const& event) noexcept : stream_{CUstream{}}, event_{&event} {}

  // Asks the driver and returns whether the work is complete. If it is, notes that in the stream's timeline. From there
  // pools learn which work is complete.
  bool poll() const;
  // Blocks the calling thread in the driver until the work is complete.
  void wait() const;
  // Returns the poll queue for waits for this target that resume on this executor. The waits in a poll queue complete
  // in the order in which they were made.
  poll_queue& queue(executor const& resumes) const;
  // Returns the point on a stream to wait for. If the target is an event of the user, that is the point of its record.
  // If the target is a stream, this function takes a pooled event and records it on the stream. It stores that event in
  // `recorded` and adds a keeper to the timeline. The caller must return the event and remove the keeper.
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
  // Removes the wait from the reactor (which polls the driver), and gives the event of the wait back. The destructor of
  // the final class must call this function. In the destructor of a base class, the virtual functions that the reactor
  // may be about to call would no longer be those of the final class.
  void cancel_and_return() noexcept;
  bool poll() const { return target_.poll(); }
  void refuse_stopped() noexcept { outcome_ = ending::stopped; }
  bool stopped() const noexcept { return outcome_ == ending::stopped; }
  // Prepares the executor and finds the poll queue. Called before add_wait() and before a stop callback exists. May
  // throw.
  void prepare();
  // Adds the wait to the reactor. Returns false if the wait has ended already. If it throws, nothing was added. If it
  // returns true, the object may be destroyed already.
  bool add_wait();
  void stop() noexcept;
  // Throws the error that ended the wait, or acquire_error after a stop. Returns if the work is complete.
  void take_result();
  // Returns whether a stop ended the wait. If so, the operation is over, and take_result() must not be called.
  bool end_if_stopped() noexcept;

private:
  enum class ending { complete, stopped, refused };

  void complete(CUresult result) noexcept override;
  void end(ending ending, CUresult result) noexcept;
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
/// while nothing can resume the coroutine: on the thread of its executor, or while that executor does not run.
export template <stoppable_token Token> class completion_operation final : public detail::completion_wait {
public:
  ~completion_operation() {
    callback_.reset();
    this->cancel_and_return();
  }

  /// Returns whether the work is complete; the coroutine then does not suspend.
  bool await_ready() {
    if (!token_.stop_requested()) return this->poll();
    this->refuse_stopped();
    return false; // only await_suspend() knows whether the promise has unhandled_stopped()
  }

  /// Begins the wait. After a stop, unhandled_stopped() of the promise is called, if the promise has that function.
  template <class Promise> auto await_suspend(std::coroutine_handle<Promise> continuation) {
    this->continue_with(continuation);
    if constexpr (detail::stoppable_promise<Promise>) {
      return begin() ? std::coroutine_handle<>{std::noop_coroutine()} : this->next();
    } else {
      return begin();
    }
  }

  /// Throws what the comment of completion_awaitable says.
  void await_resume() {
    callback_.reset();
    this->take_result();
  }

private:
  friend class completion_awaitable<Token>;
  completion_operation(detail::completion_target const& target, completion_options const& options, Token token) noexcept
      : detail::completion_wait{target, options}, token_{std::move(token)} {}

  struct on_stop {
    completion_operation* operation;
    void operator()() const noexcept { operation->stop(); }
  };

  // Returns false if the wait has ended already. Registers the stop callback before add_wait(): after add_wait()
  // another thread may resume the coroutine and destroy its frame.
  bool begin() {
    if (this->stopped()) return false;
    this->prepare();
    if (token_.stop_possible()) callback_.emplace(token_, on_stop{this});
    return this->add_wait();
  }

  bool end_stopped() noexcept override {
    if (!this->end_if_stopped()) return false;
    callback_.reset();
    return true;
  }

  Token token_;
  std::optional<stop_callback_t<Token, on_stop>> callback_;
};

/// Describes a wait for the GPU; small and movable. Start it by `co_await`, or by wait() outside a coroutine. The wait
/// completes when the host has seen that the work is complete. Then the host may read memory that the work wrote, and
/// pools know that the work is complete.
///
/// If the work is already complete, the coroutine does not suspend and allocates no host memory. Otherwise a thread
/// polls the driver at the rate of the option `latency`, and the coroutine resumes through its executor. The library
/// thread polls for coroutines that resume on it. One thread per device polls for all other coroutines.
///
/// `co_await` throws cuda_error for a driver error, also on a lost device. It throws acquire_error if the wait was
/// stopped or the stream captures a graph. It can also throw std::bad_alloc and std::system_error. If the promise has
/// unhandled_stopped(), a stop throws nothing: the handle that unhandled_stopped() returns is resumed instead.
export template <stoppable_token Token = never_stop_token> class [[nodiscard]] completion_awaitable {
public:
  /// Begins the wait.
  completion_operation<Token> operator co_await() const noexcept { return {target_, options_, token_}; }

  /// Blocks the calling thread in the driver until completion. Throws what `co_await` throws. Ignores the stop token
  /// and the options.
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

/// Returns a wait for all work that is enqueued on the stream when the `co_await` begins. The stream must live until
/// then. Any thread.
export template <stoppable_token Token = never_stop_token>
completion_awaitable<Token> completion(stream_ref stream, completion_options options = {}, Token token = {}) noexcept {
  return detail::awaitable_completion::of(stream, options, std::move(token));
}

/// Returns a wait for the work that was enqueued before the event was recorded. The last record before the `co_await`
/// begins counts. If the event was never recorded, the wait completes immediately. The event must not be destroyed or
/// recorded again before the wait ends. Any thread.
export template <stoppable_token Token = never_stop_token>
completion_awaitable<Token> completion(event const& event, completion_options options = {}, Token token = {}) noexcept {
  return detail::awaitable_completion::of(event, options, std::move(token));
}

} // namespace gpumem
