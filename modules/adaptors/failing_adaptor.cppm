// Refuses some requests on purpose: for tests of what a program does when memory runs out.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:failing_adaptor;
import :adaptor_base;
import :cuda;
import :error;
import :std;
import :stream;
import :sync;
import :waiter;

namespace gpumem {

/// Which requests a failing_adaptor refuses: those of which any of these says so. Requests are numbered from 1.
export struct failing_options {
  std::uint64_t every = 0; ///< each of which the number is a multiple of this; 0: none
  std::uint64_t first = 0; ///< `count` requests, from the one of this number on; 0: none
  std::uint64_t count = 1;
  double probability = 0; ///< from 0 to 1: each with this probability
  std::uint64_t seed = 1; ///< decides which those are: the same numbers in each run
};

/// What a failing_adaptor has counted.
export struct failing_counts {
  std::uint64_t requests = 0; ///< with those that were refused
  std::uint64_t refused = 0;  ///< by the adaptor; what upstream refused is not among them

  friend bool operator==(failing_counts const&, failing_counts const&) = default;
};

namespace detail {

// Numbers requests, and says which are refused. Any thread.
class refusals {
public:
  // Throws std::invalid_argument.
  explicit refusals(failing_options const& options);
  void restart(failing_options const& options);
  failing_counts read() noexcept;

  // Whether the next request is refused.
  bool refuse_next() noexcept;
  // The first attempt of a request that may wait has failed here or at upstream. The same thread then asks whether it
  // is to be refused where it would wait.
  void note_failed(bool refused) noexcept;
  bool refuse_waiting() noexcept;

private:
  static failing_options const& checked(failing_options const& options);

  sync::spin_mutex mutex_;
  failing_options options_;
  failing_counts counts_;
};

template <class Upstream> class failing_state final : public adaptor_state<failing_state<Upstream>, Upstream> {
  using base = adaptor_state<failing_state, Upstream>;

public:
  failing_state(Upstream upstream, failing_options const& options) : base{std::move(upstream)}, rules_{options} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    bool const refused = rules_.refuse_next();
    auto const result = refused ? refusal(bytes) : base::try_allocate(key, bytes, alignment);
    if (!result && key.queues() == queueing::behind) rules_.note_failed(refused);
    return result;
  }

  // A request that waits is numbered once, however often it asks; one for a turn alone is not.
  bool admit(waiter& item) noexcept
    requires requires(base& b) { b.admit(item); }
  {
    if (!item.asks_for_turn() && !item.has_passed(*this)) {
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
  friend class adaptor_state<failing_state, Upstream>;
  void on_granted(stream_key const&, void*, std::size_t) noexcept {}
  void on_free(stream_key const&, void*, std::size_t) noexcept {}
  void on_failure(stream_key const&, std::size_t) noexcept {}
  static expected<void*, failure> refusal(std::size_t bytes) noexcept {
    return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  }

  refusals rules_;
};

} // namespace detail

/// Refuses some requests with outcome::exhausted, as upstream does when it is out of memory, and lets all others
/// through: each so-many-th, some by their number, or some at random. For tests: a program that is run once for each
/// `first` from 1 on, until a run is refused nothing, has met a refusal at each of its requests.
///
/// Each `allocate` and `try_allocate` is one request. So is each `acquire`: if it is refused it ends, and does not
/// wait. Of `acquire_all` each block is one. A wait for a turn alone, as with_retry has it, is none. Requests of 0
/// bytes are none.
///
/// A handle; see adaptor_base. Any thread: which thread's request gets which number is then a matter of chance.
export template <mr::resource Upstream>
class failing_adaptor : public adaptor_base<failing_adaptor<Upstream>, detail::failing_state<Upstream>, Upstream> {
  using base = adaptor_base<failing_adaptor, detail::failing_state<Upstream>, Upstream>;

public:
  /// Without options it refuses nothing, and counts. Throws std::invalid_argument for a probability that is not from 0
  /// to 1, std::bad_alloc.
  explicit failing_adaptor(Upstream upstream, failing_options options = {})
      : base{new detail::failing_state<Upstream>{std::move(upstream), options}} {}

  /// Other options; the counts begin at 0, and the next request is number 1. Throws std::invalid_argument. Any thread.
  void restart(failing_options options) { this->shared().rules().restart(options); }

  /// Since the last restart, or the beginning. Any thread.
  failing_counts counts() const noexcept { return this->shared().rules().read(); }
};

} // namespace gpumem
