// `co_await completion(stream)`: the one wait for the GPU.
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

/// Options of a wait for the GPU. `resume_on` is where it resumes; null: the library thread.
export struct completion_options {
  gpumem::latency latency = gpumem::latency::balanced;
  executor* resume_on = nullptr;
};

namespace detail {

// What is waited for: all that a stream has been given, or what an event of the user captured. Small and movable.
class completion_target {
public:
  explicit completion_target(stream_ref stream) noexcept : stream_{stream} {}
  explicit completion_target(event const& event) noexcept : stream_{CUstream{}}, event_{&event} {}

  // Whether the host may take it for complete; asks the driver, and publishes what it learns. Throws.
  bool poll() const;
  // Blocks the calling thread in the driver. Throws.
  void wait() const;
  // Where it is armed. Throws.
  poll_queue& queue() const;
  // Records where the stream is now on a pooled event, which is given to the caller with a hold on the stream's
  // timeline. Throws.
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
  // Disarms, and gives the event back. By the destructor of the final class: in that of a base the class of the object
  // changes, and the reactor may be about to call reached().
  void cancel_and_release() noexcept;
  bool poll() const { return target_.poll(); }
  void refuse_stopped() noexcept { outcome_ = ending::stopped; }
  bool stopped() const noexcept { return outcome_ == ending::stopped; }
  // Before it is armed, or a stop may be told of: starts what it needs. Throws.
  void prepare();
  // Arms; false if it is over already. Throws, with nothing armed. It may be gone when this returns true.
  bool add_wait();
  void stop() noexcept;
  // Throws what ended it, unless it was completion.
  void finish();
  // Whether a stop ended it; it is then over.
  bool finish_stopped() noexcept;

private:
  enum class ending { complete, stopped, refused };

  void complete(CUresult result) noexcept override;
  void end(ending how, CUresult result) noexcept;
  void return_event() noexcept;

  completion_target target_;
  pooled_event* recorded_ = nullptr;
  bool registered_ = false; // the reactor has it, or has told it
  ending outcome_ = ending::complete;
  CUresult result_ = CUDA_SUCCESS;
};

} // namespace detail

namespace detail {
struct awaitable_completion;
} // namespace detail

namespace extend {
export template <stoppable_token Token> class completion_awaitable;

/// The operation of a completion_awaitable in one coroutine: address-stable. Destroying it while it waits forgets the
/// wait; destroy it where nothing resumes it meanwhile: on its executor's thread, or while the executor does not run.
export template <stoppable_token Token> class completion_operation final : public detail::completion_wait {
public:
  ~completion_operation() {
    callback_.reset();
    this->cancel_and_release();
  }

  bool await_ready() {
    if (!token_.stop_requested()) return this->poll();
    this->refuse_stopped();
    return false; // only await_suspend() knows whom to tell
  }

  /// A promise with unhandled_stopped() is told of a stop by that.
  template <class Promise> auto await_suspend(std::coroutine_handle<Promise> continuation) {
    this->continue_with(continuation);
    if constexpr (detail::stoppable_promise<Promise>) {
      return begin() ? std::coroutine_handle<>{std::noop_coroutine()} : this->next();
    } else {
      return begin();
    }
  }

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

  // False if it is over. The callback is registered before the wait is armed: afterwards the frame may be resumed and
  // gone.
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

/// A wait for the GPU, not yet begun; a small movable description. `co_await` it, or wait() without a coroutine.
/// Completes when the host has seen the work complete: memory that it wrote may be read by the host, and pools know of
/// it. Does not suspend, and allocates nothing on the host, if that is so already. Else one library thread a device
/// asks the driver, as often as the option `latency` says, and the coroutine resumes through its executor, never on
/// that thread. Throws cuda_error for an error of the driver (of a lost device too: an error is not completion),
/// acquire_error if it was stopped or the stream captures a graph, std::bad_alloc, std::system_error. A coroutine whose
/// promise has unhandled_stopped() is not resumed after a stop: what that gives is.
export template <stoppable_token Token = never_stop_token> class [[nodiscard]] completion_awaitable {
public:
  completion_operation<Token> operator co_await() const noexcept { return {target_, options_, token_}; }

  /// Waits on the calling thread, in the driver; throws like co_await. Neither stop nor options are looked at.
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
// Makes awaitables of what is to complete.
struct awaitable_completion {
  template <class Target, class Token>
  static completion_awaitable<Token> of(Target const& target, completion_options const& options, Token token) noexcept {
    return {completion_target{target}, options, std::move(token)};
  }
};
} // namespace detail

/// A wait for all work that the stream has been given when it is awaited. The stream must live until then. Any thread.
export template <stoppable_token Token = never_stop_token>
completion_awaitable<Token> completion(stream_ref stream, completion_options options = {}, Token token = {}) noexcept {
  return detail::awaitable_completion::of(stream, options, std::move(token));
}

/// A wait for what the event captured before it is awaited; nothing if it was never recorded. The event must neither
/// die nor be recorded again before the wait is over. Any thread.
export template <stoppable_token Token = never_stop_token>
completion_awaitable<Token> completion(event const& happened, completion_options options = {},
                                       Token token = {}) noexcept {
  return detail::awaitable_completion::of(happened, options, std::move(token));
}

} // namespace gpumem
