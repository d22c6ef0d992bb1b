// acquire: requests for memory that may wait, their options, and the operations that wait for their answers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <array>
#include <coroutine>
#include <optional>
#include <utility>
export module gpumem:acquire;
import :allocation;
import :coroutine;
import :cuda;
import :device;
import :error;
import :executor;
import :services;
import :std;
import :stream;
import :suspension;
import :sync;
import :timer;
import :waiter;

namespace gpumem {

/// Options of a request.
export struct acquire_options {
  std::size_t alignment = 256;   ///< alignment of the memory, in bytes; a power of two
  executor* resume_on = nullptr; ///< resumes a coroutine that had to wait; null: the library thread does
  int priority = 0;              ///< waiting requests of higher priority are served first
  /// When std::chrono::steady_clock reaches this time, a request that still waits ends with outcome::deadline. The
  /// library thread checks the clock. Memory that is free when the request begins is granted even after the deadline.
  sync::time_point deadline = sync::time_point::max();
  /// Names the block in snapshots and reports, if not null. The text must live until the request has ended; see
  /// pool_resource::set_label.
  char const* label = nullptr;
};

/// One of the blocks for which acquire_all() asks.
export struct block_request {
  stream_ref stream;           ///< the stream in whose order the block is valid
  std::size_t bytes;           ///< size of the block, in bytes
  std::size_t alignment = 256; ///< alignment of the block, in bytes; a power of two
};

} // namespace gpumem

namespace gpumem::extend {
// The result of a request for N blocks.
template <std::size_t N> struct acquired {
  using type = std::array<allocation, N>;
};
template <> struct acquired<1> {
  using type = allocation;
};
/// One allocation, or an array of N.
export template <std::size_t N> using acquired_t = acquired<N>::type;
} // namespace gpumem::extend

namespace gpumem::detail {

// A request and the resource to which it goes; small and movable. A request for a turn asks for no memory: it waits
// until the resource gives it a turn, in which the resource sets `bytes` aside for it.
struct request {
  services_handle from;
  stream_ref stream;
  std::size_t bytes;
  acquire_options options;
  bool asks_for_turn = false; // whether this is a request for a turn
};

// A request has one part for each block that it asks for. This class holds all parts after the first one.
template <std::size_t N> class further_parts {
public:
  further_parts(services_handle services, std::array<block_request, N> const& requests) noexcept
      : further_parts{services, requests, std::make_index_sequence<N>{}} {}
  std::span<request_part> all() noexcept { return parts_; }
  std::optional<failure> const& wrong() const noexcept { return wrong_; }

private:
  template <std::size_t... I>
  further_parts(services_handle services, std::array<block_request, N> const& requests,
                std::index_sequence<I...>) noexcept
      : parts_{part_of(services, requests[I])...} {}
  request_part part_of(services_handle services, block_request const& request) noexcept {
    auto const key = try_identify(request.stream, services, request.bytes);
    if (!key) wrong_ = key.error();
    return {key ? *key : stream_key::host(), request.bytes, request.alignment};
  }
  std::optional<failure> wrong_;
  std::array<request_part, N> parts_;
};
template <> class further_parts<0> {
public:
  further_parts(services_handle, std::array<block_request, 0> const&) noexcept {}
  std::span<request_part> all() noexcept { return {}; }
  std::optional<failure> wrong() const noexcept { return {}; }
};

// Names a block in snapshots, if the resource names blocks. Does nothing if the host has no memory for the text.
void set_label(services_handle const& services, void const* pointer, char const* label) noexcept;

// The first attempt of a request for one block. Most requests end here, without a waiting_operation: its construction
// took three times as long as the allocation itself.
class first_attempt {
public:
  first_attempt() = default;
  first_attempt(first_attempt const&) = delete;
  first_attempt& operator=(first_attempt const&) = delete;

  // Tries to allocate immediately. Returns false if the request must wait and the resource lets requests wait;
  // refused() then returns true. Also returns false if it cannot try: for 0 bytes, a request for a turn, or a resource
  // of another library.
  inline bool try_now(request const& request) noexcept {
    auto const& table = *request.from.table;
    if (!table.try_allocate_behind || request.asks_for_turn || request.bytes == 0) return false;
    granted_ = table.try_allocate_behind(request.from.state, request.stream, request.bytes, request.options.alignment,
                                         &attempt_);
    refused_ = !granted_ && attempt_.why.reason == outcome::exhausted && table.admit;
    return !refused_;
  }
  // As try_now(), for a request that does not wait. Returns false only if it cannot try.
  inline bool try_once(request const& request) noexcept {
    attempt_.place = queueing::once;
    return try_now(request) || refused_;
  }
  inline bool refused() const noexcept { return refused_; }
  // Returns whether memory was granted and not taken yet.
  inline bool holds() const noexcept { return granted_ != nullptr; }
  inline failure const& why() const noexcept { return attempt_.why; }
  inline allocation take(request const& request) noexcept {
    if (request.options.label) [[unlikely]]
      set_label(request.from, granted_, request.options.label);
    return {request.from, *attempt_.key, std::exchange(granted_, nullptr), request.bytes, request.options.alignment};
  }

private:
  void* granted_ = nullptr;
  attempt_behind attempt_;
  bool refused_ = false;
};

// A request in progress: the key of its stream (a stream_key), its answer and, while it waits in the resource, its node
// in the resource's list. Immovable. A request that waits in that list is *parked*.
class request_operation : public waiter {
public:
  explicit request_operation(request const& request, std::span<request_part> more = {},
                             std::optional<failure> const& wrong = {}) noexcept
      : request_operation{request,
                          request.asks_for_turn ? expected<stream_key, failure>{stream_key::host()}
                                                : try_identify(request.stream, request.from, request.bytes),
                          more} {
    if (wrong) complete(unexpected<failure>{*wrong});
  }

protected:
  ~request_operation() = default;

  // Tries to allocate immediately. Returns false if the request must wait and the resource lets requests wait. If
  // `may_wait`, the attempt may wait on the host, for a bounded time, for freed memory that work on streams still uses.
  // `place_in_queue` tells how the attempt treats other requests that wait.
  bool try_now(bool may_wait = false, queueing place_in_queue = queueing::behind) noexcept;
  // Parks the request. Returns false if the resource answered it in this call. A request on a capturing stream is not
  // parked: it ends without memory, and park() returns false. When park() returns true, another thread may already have
  // destroyed the operation.
  bool park() noexcept;
  // Called where the operation resumes: the request is decided, or it has a turn. In a turn, this function asks the
  // resource again. Returns true if the request is answered. If this returns false, the request is parked again, and
  // another thread may already have destroyed the operation.
  bool answered() noexcept { return is_complete() || !park_again(); }
  // Returns whether the resource can let requests wait.
  bool can_wait() const noexcept { return services_.table->admit != nullptr; }
  // Withdraws the request from the resource. Returns true if it was still parked.
  bool cancel_waiter() noexcept;
  // Called at a stop or at the deadline. If the request is still parked, answers it with `reason`. Only the first call
  // counts.
  void cancel(outcome reason) noexcept;
  // Returns whether a stop ended the request; if so, removes that answer.
  bool take_stopped() noexcept;
  // Returns the answer and removes it. take_or_throw() throws the exception that belongs to a failure.
  expected<allocation, failure> take() noexcept;
  allocation take_or_throw();
  // For a request with several parts: these store the blocks of all parts in `places`. take_into() returns the failure,
  // if there is one; take_into_or_throw() throws its exception.
  std::optional<failure> take_into(std::span<allocation> places) noexcept;
  void take_into_or_throw(std::span<allocation> places);
  // Frees the granted memory.
  void return_memory() noexcept;
  // Returns whether the request was passed to the resource and its answer has not been taken.
  bool parked() const noexcept { return parked_; }
  // Returns whether a stop or the deadline ended the request: the resource then no longer refers to it.
  bool was_cancelled() const noexcept { return cancelled_; }
  void end_turn() noexcept;
  sync::time_point deadline() const noexcept { return deadline_; }
  // If `deadline` has passed, makes park() end the request with outcome::deadline.
  void note_late(sync::time_point deadline) noexcept;

private:
  request_operation(request const& request, expected<stream_key, failure> const& key,
                    std::span<request_part> more) noexcept;

  expected<void*, failure> try_part(request_part const& part, bool may_wait, queueing queueing) noexcept;
  expected<void*, failure> try_parts(bool may_wait, queueing queueing) noexcept;
  bool park_again() noexcept;
  // Returns whether the stream of a part was capturing when the request began.
  bool captures() noexcept;

  services_handle services_;
  sync::time_point deadline_;
  char const* label_;
  bool parked_ = false;
  bool cancelled_ = false; // set by cancel()
};

// A request for whose answer the calling thread waits.
class blocking_operation final : public request_operation {
public:
  using request_operation::request_operation;
  using request_operation::take;
  using request_operation::take_into;
  using request_operation::take_into_or_throw;
  using request_operation::take_or_throw;
  // Waits until the request is answered.
  void wait();
  // Waits until the request is answered, at most until `deadline` or the request's deadline, whichever is earlier.
  void wait_until(sync::time_point deadline) noexcept;
  // Tries once; gets memory only if no other request waits.
  void only_now() noexcept;
  // Like `allocate` of a resource: if no memory can be used immediately, waits on the host, for a bounded time, for
  // freed memory that work on streams still uses. Ignores other requests that wait.
  expected<allocation, failure> allocate() noexcept;

private:
  void on_complete() noexcept override;
  void wait_parked(sync::time_point deadline);
  void sleep() GPUMEM_REQUIRES(mutex_);
  sync::mutex mutex_;
  sync::condition wake_;
  bool done_ GPUMEM_GUARDED_BY(mutex_) = false;
};

// A request for whose answer a suspended coroutine waits. It is a timer that expires at the deadline.
class suspended_operation : public request_operation, public suspension, private timer {
public:
  suspended_operation(request const& request, std::span<request_part> more,
                      std::optional<failure> const& wrong) noexcept
      : request_operation{request, more, wrong}, suspension{request.options.resume_on} {}

protected:
  ~suspended_operation() = default;

  // Called before park(). Chooses the executor and starts the timer. Throws std::system_error, std::bad_alloc, and
  // cuda_error in a forked child.
  void prepare();
  // After this returns, the deadline cannot cancel the request. The caller holds no lock of a resource.
  void forget_deadline() noexcept { cancel_timer(*this); }

  // Withdraws the request, or frees the granted memory. The destructor of the final class calls this. In the destructor
  // of a base, the virtual functions of the final class could no longer be called, and another thread may be about to
  // call on_complete().
  void cancel_and_return() noexcept;

private:
  void on_complete() noexcept override { this->post(); }
  bool conclude() noexcept override;
  void expire() noexcept override { cancel(outcome::deadline); }
};

// The operation of a request that first_attempt did not answer, or that has several parts.
template <stoppable_token Token, std::size_t N>
class waiting_operation final : private further_parts<N - 1>, public suspended_operation {
public:
  waiting_operation(request const& request, std::array<block_request, N - 1> const& more, Token const& token) noexcept
      : further_parts<N - 1>{request.from, more}, suspended_operation{request, this->all(), this->wrong()},
        token_{token} {}
  ~waiting_operation() {
    forget_cancellers();
    this->cancel_and_return();
  }

  using suspended_operation::continue_with;
  using suspended_operation::next;
  using suspended_operation::try_now;
  void stop() noexcept { this->complete(unexpected<failure>{failure{outcome::stopped, 0, this->bytes()}}); }

  // Parks the request. Returns false if it is answered already. The deadline and the stop callback are registered
  // before the request is parked: once it is parked, the coroutine may resume and destroy this object.
  bool begin() {
    if (this->is_complete()) return false;
    this->note_late(this->deadline());
    this->prepare();
    if (token_.stop_possible()) callback_.emplace(token_, on_stop{this});
    return this->park();
  }

  extend::acquired_t<N> take_result() {
    forget_cancellers();
    if constexpr (N == 1) {
      return this->take_or_throw();
    } else {
      extend::acquired_t<N> granted;
      this->take_into_or_throw(granted);
      return granted;
    }
  }

private:
  struct on_stop {
    waiting_operation* operation;
    void operator()() const noexcept { operation->cancel(outcome::stopped); }
  };

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

} // namespace gpumem::detail

namespace gpumem {

namespace detail {
struct awaitable_request;
} // namespace detail

namespace extend {
export template <stoppable_token Token, std::size_t N> class acquire_awaitable;

/// The awaiter of one `co_await` of an acquire_awaitable; immovable. The destructor withdraws a request that still
/// waits. If memory was granted but the coroutine has not resumed, the destructor frees it. Destroy the awaiter only
/// where the executor (see acquire_options::resume_on) cannot resume the coroutine meanwhile: on the executor's thread,
/// or while the executor does not run.
export template <stoppable_token Token, std::size_t N = 1> class acquire_operation {
public:
  acquire_operation(acquire_operation const&) = delete;
  acquire_operation& operator=(acquire_operation const&) = delete;
  ~acquire_operation() {
    if (first_.holds()) static_cast<void>(first_.take(request_)); // frees the memory
  }

  /// Tries to get memory immediately. Returns true, and the coroutine does not suspend, if the request was granted or
  /// failed.
  bool await_ready() noexcept {
    bool const stopped = token_.stop_requested();
    if (N == 1 && !stopped && first_.try_now(request_)) return true;
    auto& operation = waiting_.emplace(request_, more_, token_);
    if (!stopped) return !first_.refused() && operation.try_now();
    operation.stop();
    return false; // await_suspend() tells the promise of the stop
  }

  /// Makes the request wait in the resource. If a stop was requested, calls unhandled_stopped() of the promise, if the
  /// promise has that function. Throws std::system_error or std::bad_alloc if the library thread cannot be started.
  /// Throws cuda_error in a forked child.
  template <class Promise> auto await_suspend(std::coroutine_handle<Promise> continuation) {
    waiting_->continue_with(continuation);
    if constexpr (detail::stoppable_promise<Promise>) {
      return waiting_->begin() ? std::coroutine_handle<>{std::noop_coroutine()} : waiting_->next();
    } else {
      return waiting_->begin();
    }
  }

  /// Returns the memory. Throws as acquire_awaitable says.
  acquired_t<N> await_resume() {
    if constexpr (N == 1) {
      if (first_.holds()) return first_.take(request_);
      if (!waiting_) detail::throw_failure_of(request_.from, request_.stream.get(), first_.why());
    }
    return waiting_->take_result();
  }

private:
  friend class acquire_awaitable<Token, N>;
  acquire_operation(detail::request const& request, std::array<block_request, N - 1> const& more, Token token) noexcept
      : request_{request}, more_{more}, token_{std::move(token)} {}

  detail::request request_;
  [[no_unique_address]] std::array<block_request, N - 1> more_;
  [[no_unique_address]] Token token_;
  detail::first_attempt first_;
  std::optional<detail::waiting_operation<Token, N>> waiting_;
};

/// A request for memory that has not begun: a small movable description. `co_await` it, or call one of its functions.
/// `co_await` completes when memory is granted that is valid in the stream's order; it never waits for the GPU. If
/// memory is free, the coroutine does not suspend and nothing is allocated on the host. Otherwise the request waits if
/// the resource lets requests wait: by priority and order of arrival, at most until its deadline. The executor that
/// acquire_options name then resumes the coroutine.
///
/// Throws the exception that belongs to the failure (see `throw_failure`): out_of_memory, cuda_error, acquire_error or
/// std::invalid_argument. If the deadline has passed, that is an acquire_error. After a stop, unhandled_stopped() of
/// the promise is called instead, if the promise has that function. The resource and the stream must live until the
/// request has ended. If the stream captures a graph when the coroutine resumes, the outcome is capture_unsupported. A
/// request that begins on a capturing stream never waits: if no memory is free, it ends with outcome::exhausted.
export template <stoppable_token Token = never_stop_token, std::size_t N = 1> class [[nodiscard]] acquire_awaitable {
public:
  /// One allocation, or an array of N.
  using value_type = acquired_t<N>;

  /// Begins the request.
  acquire_operation<Token, N> operator co_await() const noexcept { return {request_, more_, token_}; }

  /// Returns memory that is free now, or the failure. While other requests wait, the failure is outcome::exhausted.
  /// Does not wait, does not throw.
  [[nodiscard]] expected<value_type, failure> try_now() const noexcept {
    if constexpr (N == 1) {
      detail::first_attempt first;
      if (first.try_once(request_)) {
        if (first.holds()) return first.take(request_);
        return unexpected<failure>{first.why()};
      }
    }
    return answered([](auto& operation) { operation.only_now(); });
  }

  /// Waits on the calling thread for the memory, at most until the deadline. Throws like `co_await`; ignores the stop
  /// token. Must not be called on the library thread, which may have to answer the request.
  [[nodiscard]] value_type wait() const {
    detail::further_parts<N - 1> parts{request_.from, more_};
    detail::blocking_operation operation{request_, parts.all(), parts.wrong()};
    operation.wait();
    if constexpr (N == 1) {
      return operation.take_or_throw();
    } else {
      value_type granted;
      operation.take_into_or_throw(granted);
      return granted;
    }
  }

  /// Waits on the calling thread for the memory, at most until `deadline` or the request's deadline, whichever is
  /// earlier. Returns the memory or the failure: outcome::deadline if the request has not been answered by then.
  /// Ignores the stop token. Must not be called on the library thread.
  [[nodiscard]] expected<value_type, failure> wait_until(sync::time_point deadline) const noexcept {
    return answered([deadline](auto& operation) { operation.wait_until(deadline); });
  }

private:
  friend struct detail::awaitable_request;
  acquire_awaitable(detail::request request, std::array<block_request, N - 1> const& more, Token token) noexcept
      : request_{request}, more_{more}, token_{std::move(token)} {}

  template <class Answer> expected<value_type, failure> answered(Answer answer) const noexcept {
    detail::further_parts<N - 1> parts{request_.from, more_};
    detail::blocking_operation operation{request_, parts.all(), parts.wrong()};
    answer(operation);
    if constexpr (N == 1) {
      return operation.take();
    } else {
      value_type granted;
      if (auto const why = operation.take_into(granted)) return unexpected<failure>{*why};
      return granted;
    }
  }

  detail::request request_;
  [[no_unique_address]] std::array<block_request, N - 1> more_;
  Token token_;
};
} // namespace extend

namespace detail {
// Makes an awaitable of a request, for functions that are no friends of acquire_awaitable.
struct awaitable_request {
  template <class Token, std::size_t N = 1>
  static acquire_awaitable<Token, N> of(request const& request, std::array<block_request, N - 1> const& more,
                                        Token token) noexcept {
    return {request, more, std::move(token)};
  }
};

// Returns an awaitable that waits until the resource could grant a request for `bytes`, but gets no memory. If `bytes`
// is more than the resource can ever have, waits until it could grant all that it can have. Completes immediately if
// the resource does not let requests wait. `resume_on` is the executor of acquire_options.
template <class R> acquire_awaitable<> turn_for(R& resource, std::size_t bytes, executor* resume_on) noexcept {
  return awaitable_request::of<never_stop_token>(
      {services_of(resource), stream_ref{CUstream{}}, bytes, {.resume_on = resume_on}, true}, {}, {});
}
} // namespace detail

/// Asks any resource for memory in stream order: `co_await acquire(pool, stream, bytes, {.deadline = soon}, token)`.
/// The options have the deadline; the stop token is an argument of its own. A resource that is not gpumem's is asked by
/// its `allocate`: the coroutine then does not suspend, and the resource must outlive the allocation. Any thread.
export template <class R, stoppable_token Token = never_stop_token>
acquire_awaitable<Token> acquire(R& resource, stream_ref stream, std::size_t bytes, acquire_options options = {},
                                 Token token = {}) noexcept {
  return detail::awaitable_request::of<Token>({services_of(resource), stream, bytes, options}, {}, std::move(token));
}

/// Asks for several blocks in one request, each with its own stream: `acquire_all(pool, {{a, bytes}, {b, other}})`.
/// Either all are granted or none, so the request never holds one block while it waits for another. While it waits, it
/// counts as a request for the sum of the bytes. The result is a std::array of allocations. `options.alignment` is
/// ignored: each block has its own alignment. Any thread.
export template <class R, std::size_t N, stoppable_token Token = never_stop_token>
  requires(N > 1)
acquire_awaitable<Token, N> acquire_all(R& resource, block_request const (&blocks)[N], acquire_options options = {},
                                        Token token = {}) noexcept {
  options.alignment = blocks[0].alignment;
  auto const further = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<block_request, N - 1>{blocks[I + 1]...};
  }(std::make_index_sequence<N - 1>{});
  return detail::awaitable_request::of<Token, N>({services_of(resource), blocks[0].stream, blocks[0].bytes, options},
                                                 further, std::move(token));
}

} // namespace gpumem
