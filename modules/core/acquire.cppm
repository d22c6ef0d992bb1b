// `co_await acquire(resource, stream, bytes)`: a request for memory as an awaitable.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:acquire;
import :allocation;
import :coroutine;
import :cuda;
import :device;
import :error;
import :executor;
import :services;
import :std;
import :stop_token;
import :stream;
import :suspension;
import :sync;
import :timer;
import :waiter;

namespace gpumem {

/// Options of a request.
export struct acquire_options {
  std::size_t alignment = 256;
  executor* resume_on = nullptr; ///< where a request that had to wait resumes; null: the library thread
  int priority = 0;              ///< of requests that wait those of the highest priority go first
  /// A request that has waited until then ends with outcome::deadline; the library thread looks at the clock. Memory
  /// that is at hand at the beginning is granted whatever the deadline.
  sync::time_point deadline = sync::time_point::max();
};

namespace detail {

// What is asked of whom; small and movable.
struct request {
  services_handle from;
  stream_ref stream;
  std::size_t bytes;
  acquire_options options;
  bool turn_only = false; // see waiter::asks_for_turn
};

// A request in progress: its key, its answer, and, while parked, the node by which it is found. Immovable.
class request_operation : public waiter {
public:
  explicit request_operation(request const& what) noexcept
      : request_operation{what, what.turn_only ? expected<stream_key, failure>{stream_key::host()}
                                               : try_identify(what.stream, what.from, what.bytes)} {}

protected:
  ~request_operation() = default;

  // Tries at once; false if the request would have to wait and can. `may_wait`: see stream_key.
  bool try_now(bool may_wait = false, queueing how = queueing::behind) noexcept;
  // Parks; false if it was answered at once. The operation may be gone when this returns true.
  bool park() noexcept;
  // It was decided, or it is its turn and it asks again. True: it is answered. False: it is parked again, and the
  // operation may be gone.
  bool answered() noexcept { return settled() || !park_again(); }
  // The resource may let requests wait.
  bool can_wait() const noexcept { return from_.table->admit != nullptr; }
  // Takes it back from the resource; true if it was still parked.
  bool withdraw() noexcept;
  // A stop or the deadline: answers with the reason if it was still parked. The first reason stands.
  void cancel(outcome why) noexcept;
  // Whether the answer is that it was stopped; that answer is then taken.
  bool take_stopped() noexcept;
  // The answer; throws what belongs to a failure.
  expected<allocation, failure> take() noexcept;
  allocation take_or_throw();
  // It was handed to the resource, and its answer has not been taken.
  bool parked() const noexcept { return parked_; }
  // A stop or the deadline has decided it: the resource knows nothing of it any more.
  bool withdrawn() const noexcept { return withdrawn_; }
  void end_turn() noexcept;
  sync::time_point deadline() const noexcept { return deadline_; }
  // The moment has passed: it is answered with that.
  bool is_late(sync::time_point deadline) noexcept;

private:
  request_operation(request const& what, expected<stream_key, failure> const& key) noexcept;

  bool park_again() noexcept;

  services_handle from_;
  sync::time_point deadline_;
  bool parked_ = false;
  bool withdrawn_ = false; // by cancel()
};

// Waits for an answer on the calling thread.
class blocking_operation final : public request_operation {
public:
  using request_operation::request_operation;
  allocation wait();
  // Until the earlier of this and its own deadline.
  expected<allocation, failure> wait_until(sync::time_point when) noexcept;
  // In turn with those that wait.
  expected<allocation, failure> only_now() noexcept;
  // As `allocate` does: waits, for a bounded time, for memory that is free but still in use.
  expected<allocation, failure> allocate() noexcept;

private:
  void decided() noexcept override;
  void wait_parked(sync::time_point deadline);
  void sleep(sync::lock& held);
  sync::mutex guard_;
  sync::condition wake_;
  bool done_ = false;
};

// Waits for an answer in a suspended coroutine. Its timer expires at its deadline.
class suspended_operation : public request_operation, public suspension, private timer {
public:
  explicit suspended_operation(request const& what) noexcept
      : request_operation{what}, suspension{what.options.resume_on} {}

protected:
  ~suspended_operation() = default;

  // Before it is parked: starts what it needs. Throws as suspension::prepare().
  void prepare();
  // When it returns the deadline cancels no more. No lock of a resource may be held.
  void forget_deadline() noexcept { cancel_timer(*this); }

  // Gives back what was granted or asked for. By the destructor of the final class: in that of a base the class of the
  // object changes, and somebody may be about to call decided().
  void abandon() noexcept;

private:
  void decided() noexcept override { this->post(); }
  bool conclude() noexcept override;
  void expire() noexcept override { cancel(outcome::deadline); }
};

} // namespace detail

/// The operation of an acquire_awaitable in one coroutine: address-stable. Destroying it while parked withdraws the
/// request; if memory was granted and the coroutine not resumed, the memory goes back. Destroy it where nothing resumes
/// it meanwhile: on its executor's thread, or while the executor does not run.
export template <stoppable_token Token> class acquire_operation final : public detail::suspended_operation {
public:
  acquire_operation(detail::request const& what, Token token) noexcept
      : detail::suspended_operation{what}, token_{std::move(token)} {}
  ~acquire_operation() {
    forget_cancellers();
    this->abandon();
  }

  bool await_ready() noexcept {
    if (!token_.stop_requested()) return this->try_now();
    this->settle(expected<void*, failure>{unexpect, failure{outcome::stopped, 0, this->bytes()}});
    return false; // only await_suspend() knows whom to tell
  }

  /// A promise with unhandled_stopped() is told of a stop by that. Throws std::system_error where the library thread
  /// cannot be started.
  template <class Promise> auto await_suspend(std::coroutine_handle<Promise> continuation) {
    this->continue_with(continuation);
    if constexpr (detail::stoppable_promise<Promise>) {
      return begin() ? std::coroutine_handle<>{std::noop_coroutine()} : this->next();
    } else {
      return begin();
    }
  }

  allocation await_resume() {
    forget_cancellers();
    return this->take_or_throw();
  }

private:
  struct on_stop {
    acquire_operation* operation;
    void operator()() const noexcept { operation->cancel(outcome::stopped); }
  };

  // False if it is answered. Deadline and callback are registered before the request is published: afterwards the frame
  // may be resumed and gone.
  bool begin() {
    if (this->settled() || this->is_late(this->deadline())) return false;
    this->prepare();
    if (token_.stop_possible()) callback_.emplace(token_, on_stop{this});
    return this->park();
  }

  bool end_stopped() noexcept override {
    if (!this->take_stopped()) return false;
    forget_cancellers();
    return true;
  }

  void forget_cancellers() noexcept {
    callback_.reset();
    this->forget_deadline();
  }

  Token token_;
  std::optional<stop_callback_t<Token, on_stop>> callback_;
};

/// A request for memory, not yet begun; a small movable description. `co_await` it, or ask without a coroutine.
/// Completes when memory is granted and valid in the stream's order; never waits for the GPU. With memory at hand it
/// does not suspend and allocates nothing on the host. Without memory it waits, if the resource lets requests wait, in
/// order of arrival and until its deadline at most, and resumes through its executor. Throws out_of_memory, cuda_error,
/// acquire_error, std::invalid_argument as `throw_failure` says. A deadline is such an error; only a stop is told by
/// unhandled_stopped(). The resource and the stream must live until the request has ended. A stream that captures by
/// then gets outcome::capture_unsupported.
export template <stoppable_token Token = never_stop_token> class [[nodiscard]] acquire_awaitable {
public:
  acquire_awaitable(detail::request what, Token token) noexcept : what_{what}, token_{std::move(token)} {}

  acquire_operation<Token> operator co_await() const noexcept { return {what_, token_}; }

  /// Memory at hand or the reason why not; does not wait, does not throw. While others wait, outcome::exhausted.
  expected<allocation, failure> try_now() const noexcept { return detail::blocking_operation{what_}.only_now(); }

  /// Waits on the calling thread, which must not be the library thread; throws like co_await. The deadline is looked
  /// at, a stop is not.
  allocation wait() const { return detail::blocking_operation{what_}.wait(); }

  /// Waits at most until then, or until the request's deadline if that is earlier; outcome::deadline if nothing was
  /// decided.
  expected<allocation, failure> wait_until(sync::time_point when) const noexcept {
    return detail::blocking_operation{what_}.wait_until(when);
  }

private:
  detail::request what_;
  Token token_;
};

namespace detail {
// Waits until there could be so many bytes for the resource's next request, and gets none. Of a resource whose requests
// do not wait: at once.
template <class R> acquire_awaitable<> turn_for(R& resource, std::size_t bytes, executor* resume_on) noexcept {
  return {request{services_of(resource), stream_ref{CUstream{}}, bytes, {.resume_on = resume_on}, true}, {}};
}
} // namespace detail

/// Asks any resource for memory in stream order. Over a resource without gpumem's services it is `allocate`, and ready
/// at once; the resource must then outlive the allocation. Any thread.
export template <class R, stoppable_token Token = never_stop_token>
acquire_awaitable<Token> acquire(R& resource, stream_ref stream, std::size_t bytes, acquire_options options = {},
                                 Token token = {}) noexcept {
  return {detail::request{services_of(resource), stream, bytes, options}, std::move(token)};
}

} // namespace gpumem
