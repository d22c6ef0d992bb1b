// failing_adaptor: refuses some requests on purpose, to test what a program does when memory runs out.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:failing_adaptor;
import :adaptor_base;
import :cuda;
import :error;
import :std;
import :stream;
import :sync;
import :waiter;

namespace gpumem {

/// The rules of a failing_adaptor: it refuses each request that at least one rule selects. The first request has number
/// 1.
export struct failing_options {
  std::uint64_t every = 0; ///< refuses each request whose number is a multiple of `every`; 0: no request
  std::uint64_t first = 0; ///< refuses `count` requests, the first of them number `first`; 0: no request
  std::uint64_t count = 1; ///< number of requests that the rule `first` refuses
  double probability = 0;  ///< refuses each request with this probability, from 0 to 1
  std::uint64_t seed = 1;  ///< for `probability`: with the same seed each run refuses the same request numbers
};

/// The counts of a failing_adaptor.
export struct failing_counts {
  std::uint64_t requests = 0; ///< all requests, including the refused ones
  std::uint64_t refused = 0;  ///< refused by the adaptor; failures of the upstream do not count

  bool operator==(failing_counts const&) const = default;
};

namespace detail {

// Numbers the requests and decides which are refused. Any thread.
class refusals {
public:
  // Throws std::invalid_argument for a probability outside 0 to 1.
  explicit refusals(failing_options const& options);
  void restart(failing_options const& options);
  failing_counts read() noexcept;

  // Counts a request and returns whether it is refused.
  bool refuse_next() noexcept;
  // A request that may wait makes an attempt before it waits. If that attempt fails, note_failed() stores for this
  // thread whether this adaptor (true) or the upstream (false) refused it. When the request then begins to wait on the
  // same thread, refuse_waiting() returns the stored decision, so that the request gets one number only.
  void note_failed(bool refused) noexcept;
  bool refuse_waiting() noexcept;

private:
  static failing_options const& checked(failing_options const& options);

  sync::spin_mutex mutex_;
  failing_options options_ GPUMEM_GUARDED_BY(mutex_);
  failing_counts counts_ GPUMEM_GUARDED_BY(mutex_);
};

template <class Upstream> class failing_state final : public adaptor_state<failing_state<Upstream>, Upstream> {
  using base = adaptor_state<failing_state, Upstream>;

public:
  failing_state(Upstream upstream, failing_options const& options) : base{std::move(upstream)}, rules_{options} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    bool const refused = rules_.refuse_next();
    auto const result = refused ? refusal(bytes) : base::try_allocate(key, bytes, alignment);
    if (!result && key.context().queues() == queueing::behind) rules_.note_failed(refused);
    return result;
  }

  // A request that waits calls admit() repeatedly, but is numbered at the first call only. with_retry makes requests
  // that ask only for a turn in the upstream's queue, and not for memory. These get no number.
  bool admit(waiter& item) noexcept
    requires requires(base& b) { b.admit(item); }
  {
    if (!item.asks_for_turn() && !item.has_passed(*this)) {
      if (!item.add_hook(*this)) return false;
      if (rules_.refuse_waiting()) {
        item.complete(refusal(item.bytes()));
        return false;
      }
      item.mark_passed(*this);
    }
    return base::admit(item);
  }

  refusals& rules() noexcept { return rules_; }

private:
  static expected<void*, failure> refusal(std::size_t bytes) noexcept {
    return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  }

  refusals rules_;
};

} // namespace detail

/// Refuses some requests with outcome::exhausted, as an upstream without memory does, and passes all others to the
/// upstream. The options select every n-th request, a range of request numbers, or requests at random. To test a
/// program with a refusal at each of its requests, run it with `first` = 1, 2, … until a run has no refusal.
///
/// Each `allocate` and `try_allocate` counts as one request, and so does each block of an `acquire_all`. Each `acquire`
/// counts as one too; if it is refused, it ends without waiting. Requests of 0 bytes do not count. with_retry runs work
/// again that the pool has preempted. Before that, it waits for a turn in the upstream's queue; that wait does not
/// count either.
///
/// Copies are handles to the same adaptor; see adaptor_base. Any thread. Threads that run concurrently get their
/// request numbers in an order that varies from run to run.
export template <class Upstream>
class failing_adaptor : public adaptor_base<failing_adaptor<Upstream>, detail::failing_state<Upstream>, Upstream> {
  using base = adaptor_base<failing_adaptor, detail::failing_state<Upstream>, Upstream>;

public:
  /// Without options the adaptor only counts. Throws std::invalid_argument for a probability outside 0 to 1, and
  /// std::bad_alloc.
  explicit failing_adaptor(Upstream upstream, failing_options options = {})
      : base{new detail::failing_state<Upstream>{std::move(upstream), options}} {}

  /// Sets new options and resets the counts to 0; the next request is number 1. Throws std::invalid_argument for a
  /// probability outside 0 to 1. Any thread.
  void restart(failing_options options) { this->shared().rules().restart(options); }

  /// Returns the counts since the last restart() or the construction. Any thread.
  failing_counts counts() const { return this->shared().rules().read(); }
};

} // namespace gpumem
