// failure_callback_adaptor: calls a function when the upstream has no memory, and tries again.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:failure_callback_adaptor;
import :adaptor_base;
import :cuda;
import :device;
import :error;
import :services;
import :std;
import :stream;

namespace gpumem {

/// A request that failed because memory is exhausted.
export struct allocation_failure {
  std::size_t requested; ///< bytes of the request
  /// The bytes that are missing, according to the statistics of the upstream and the free memory of its device. Equal
  /// to `requested` in two cases: if these two figures show enough free memory, but no single free range is large
  /// enough; or if both figures are unknown.
  std::size_t missing;
  unsigned attempt; ///< number of the failed attempt: 1 for the first
  outcome reason;   ///< always outcome::exhausted
};

/// Options of a failure_callback_adaptor.
export struct failure_callback_options {
  /// Frees memory and returns true to try again, or returns false to let the request fail. If it throws, the request
  /// fails. After each call that returns true, the request is tried again.
  std::function<bool(allocation_failure const&)> callback;
  unsigned max_retries = 8; ///< most calls of the function for one request; so also most attempts after the first
};

namespace detail {

// Calls the user's callback. Any thread.
class failure_calls {
public:
  // Throws std::invalid_argument if the callback is empty.
  explicit failure_calls(failure_callback_options options);

  // Calls the callback and returns whether the request shall be tried again. After `max_retries` calls for the request,
  // and if the request comes from inside the callback itself, returns false without a call.
  bool wants_retry(services_handle upstream, std::optional<device> device, failure const& failure,
                   unsigned attempt) noexcept;

private:
  failure_callback_options const options_;
};

template <class Upstream>
class failure_callback_state final : public adaptor_state<failure_callback_state<Upstream>, Upstream> {
  using base = adaptor_state<failure_callback_state, Upstream>;

public:
  failure_callback_state(Upstream upstream, failure_callback_options options)
      : base{std::move(upstream)}, calls_{std::move(options)} {}

  // If the request may wait at the upstream, a failed attempt does not end it, so the callback is not called.
  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    auto result = base::try_allocate(key, bytes, alignment);
    bool const may = key.context().queues() == queueing::behind || key.context().queues() == queueing::admitted;
    bool const waits = may && this->access().can_wait();
    for (unsigned attempt = 1; !result && !waits && may_retry(result.error(), attempt); ++attempt)
      result = base::try_allocate(key, bytes, alignment);
    return result;
  }

private:
  bool may_retry(failure const& failure, unsigned attempt) noexcept {
    return failure.reason == outcome::exhausted &&
           calls_.wants_retry(services_of(this->upstream()), this->where(), failure, attempt);
  }

  failure_calls calls_;
};

} // namespace detail

/// Calls a function when the upstream fails a request as `exhausted`, and tries again if the function returns true. The
/// function may free memory, shrink caches, or write a report. It runs on the thread of the request and without a lock
/// of gpumem, so it may free, synchronize and allocate. If it allocates through the same adaptor and that request
/// fails, the function is not called again for that request. Calls on several threads may overlap.
///
/// For a request that waits at the upstream the function is not called; pool_resource::on_pressure is for such
/// requests. Copies are handles to the same adaptor; see adaptor_base. Any thread.
export template <class Upstream>
class failure_callback_adaptor
    : public adaptor_base<failure_callback_adaptor<Upstream>, detail::failure_callback_state<Upstream>, Upstream> {
  using base = adaptor_base<failure_callback_adaptor, detail::failure_callback_state<Upstream>, Upstream>;

public:
  /// Throws std::bad_alloc, and std::invalid_argument if the callback is empty.
  failure_callback_adaptor(Upstream upstream, failure_callback_options options)
      : base{new detail::failure_callback_state<Upstream>{std::move(upstream), std::move(options)}} {}
};

} // namespace gpumem
