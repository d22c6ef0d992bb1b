// acquire() and acquire_all(): a request for memory as an awaitable, for `co_await acquire(resource, stream, bytes)`.
// SPDX-License-Identifier: Apache-2.0
module;
#include <array>
#include <coroutine>
#include <optional>
#include <utility>
export module gpumem:acquire;
import :acquire_options;
import :allocation;
import :coroutine;
import :cuda;
import :error;
import :executor;
import :request_operation;
import :services;
import :std;
import :stop_token;
import :stream;
import :suspension;
import :sync;

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
    if (first_.holds()) static_cast<void>(first_.take(what_)); // frees the memory
  }

  /// Tries to get memory immediately. Returns true, and the coroutine does not suspend, if the request was granted or
  /// failed.
  bool await_ready() noexcept {
    bool const stopped = token_.stop_requested();
    if (N == 1 && !stopped && first_.try_now(what_)) return true;
    auto& operation = waiting_.emplace(what_, more_, token_);
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
      if (first_.holds()) return first_.take(what_);
      if (!waiting_) detail::throw_failure_of(what_.from, what_.stream.get(), first_.why());
    }
    return waiting_->finish();
  }

private:
  friend class acquire_awaitable<Token, N>;
  acquire_operation(detail::request const& what, std::array<block_request, N - 1> const& more, Token token) noexcept
      : what_{what}, more_{more}, token_{std::move(token)} {}

  detail::request what_;
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
  acquire_operation<Token, N> operator co_await() const noexcept { return {what_, more_, token_}; }

  /// Returns memory that is free now, or the failure. While other requests wait, the failure is outcome::exhausted.
  /// Does not wait, does not throw.
  [[nodiscard]] expected<value_type, failure> try_now() const noexcept {
    if constexpr (N == 1) {
      detail::first_attempt first;
      if (first.try_now(what_) || first.refused()) {
        if (first.holds()) return first.take(what_);
        return unexpected<failure>{first.why()};
      }
    }
    return answered([](auto& operation) { operation.only_now(); });
  }

  /// Waits on the calling thread for the memory, at most until the deadline. Throws like `co_await`; ignores the stop
  /// token. Must not be called on the library thread, which may have to answer the request.
  [[nodiscard]] value_type wait() const {
    detail::further_parts<N - 1> parts{what_.from, more_};
    detail::blocking_operation operation{what_, parts.all(), parts.wrong()};
    operation.wait();
    if constexpr (N == 1) {
      return operation.take_or_throw();
    } else {
      value_type granted;
      operation.take_into_or_throw(granted);
      return granted;
    }
  }

  /// Waits on the calling thread for the memory, at most until `when` or the request's deadline, whichever is earlier.
  /// Returns the memory or the failure: outcome::deadline if the request has not been answered by then. Ignores the
  /// stop token. Must not be called on the library thread.
  [[nodiscard]] expected<value_type, failure> wait_until(sync::time_point when) const noexcept {
    return answered([when](auto& operation) { operation.wait_until(when); });
  }

private:
  friend struct detail::awaitable_request;
  acquire_awaitable(detail::request what, std::array<block_request, N - 1> const& more, Token token) noexcept
      : what_{what}, more_{more}, token_{std::move(token)} {}

  template <class Answer> expected<value_type, failure> answered(Answer answer) const noexcept {
    detail::further_parts<N - 1> parts{what_.from, more_};
    detail::blocking_operation operation{what_, parts.all(), parts.wrong()};
    answer(operation);
    if constexpr (N == 1) {
      return operation.take();
    } else {
      value_type granted;
      if (auto const why = operation.take_into(granted)) return unexpected<failure>{*why};
      return granted;
    }
  }

  detail::request what_;
  [[no_unique_address]] std::array<block_request, N - 1> more_;
  Token token_;
};
} // namespace extend

namespace detail {
// Makes an awaitable of a request, for functions that are no friends of acquire_awaitable.
struct awaitable_request {
  template <class Token, std::size_t N = 1>
  static acquire_awaitable<Token, N> of(request const& what, std::array<block_request, N - 1> const& more,
                                        Token token) noexcept {
    return {what, more, std::move(token)};
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
