// Counts what goes through a resource: current, peak and total, of bytes and of allocations.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:statistics_adaptor;
import :adaptor_base;
import :cuda;
import :std;
import :stream;
import :sync;

namespace gpumem {

/// One counted quantity, since its counters were pushed. `value` is negative where more was freed than allocated.
export struct counter {
  std::int64_t value = 0; ///< now
  std::int64_t peak = 0;  ///< most that value was
  std::int64_t total = 0; ///< allocated, whether freed or not

  friend bool operator==(counter const&, counter const&) = default;
};

/// The counters of a statistics_adaptor.
export struct allocation_counts {
  counter bytes;
  counter allocations;

  friend bool operator==(allocation_counts const&, allocation_counts const&) = default;
};

namespace detail {

// Each thread writes a slot of its own; what has gathered there is published when it reaches a threshold, and with it
// the peak, under a lock. Threads beyond the slots share one, under the same lock. No call allocates but push().
class allocation_counters {
public:
  allocation_counters() : levels_(1) {}

  void granted(std::size_t bytes) noexcept;
  void freed(std::size_t bytes) noexcept;
  allocation_counts read() noexcept;
  allocation_counts push();
  allocation_counts pop();

private:
  static constexpr std::int64_t publish_bytes = std::int64_t{64} << 10;
  static constexpr std::int64_t publish_count = 64;
  static constexpr unsigned slot_count = 64;

  // A quantity in a slot. `pending` and its peak are since the last publication.
  struct share {
    std::atomic<std::int64_t> allocated{0};
    std::atomic<std::int64_t> freed{0};
    std::atomic<std::int64_t> pending{0};
    std::atomic<std::int64_t> pending_peak{0};
  };
  struct alignas(128) slot {
    share bytes;
    share count;
    std::atomic<std::uint64_t> level{0}; // of which the peaks are
  };
  struct level_base {
    std::int64_t current = 0;
    std::int64_t total = 0;
    std::int64_t peak = 0; // absolute
  };
  struct level {
    level_base bytes;
    level_base count;
  };

  void add(std::int64_t bytes, std::int64_t count) noexcept;
  bool add_to(slot& mine, std::int64_t bytes, std::int64_t count) noexcept;
  static void add_share(share& mine, std::int64_t amount, bool new_level) noexcept;
  void publish(slot& mine) noexcept;
  void publish_share(share& mine, std::int64_t& published, level_base& top) noexcept;
  level_base sum(share slot::* quantity, level_base const& top) const noexcept;
  level measure() const noexcept;
  allocation_counts since_base(level const& now) const noexcept;

  std::array<slot, slot_count + 1> slots_; // the last is shared
  alignas(128) std::atomic<std::uint64_t> level_number_{0};
  sync::mutex mutex_;
  std::int64_t published_bytes_ = 0;
  std::int64_t published_count_ = 0;
  std::vector<level> levels_;
};

template <class Upstream> class counting_state final : public adaptor_state<counting_state<Upstream>, Upstream> {
public:
  using adaptor_state<counting_state, Upstream>::adaptor_state;
  allocation_counters& counters() noexcept { return counters_; }

private:
  friend class adaptor_state<counting_state, Upstream>;
  void on_granted(stream_key const&, void*, std::size_t bytes) noexcept { counters_.granted(bytes); }
  void on_free(stream_key const&, void*, std::size_t bytes) noexcept { counters_.freed(bytes); }
  void on_failure(stream_key const&, std::size_t) noexcept {}

  allocation_counters counters_;
};

} // namespace detail

/// Counts requested bytes and allocations on their way to the upstream: at the grant, also of requests that waited;
/// frees before the upstream has them. Requests of 0 bytes are none.
///
/// Values and totals are exact once the threads that used it are quiet. The peak of bytes is exact to 64 KiB for each
/// thread that used it, that of allocations to 64 for each; with one thread both are exact. A handle; see adaptor_base.
export template <mr::resource Upstream>
class statistics_adaptor
    : public adaptor_base<statistics_adaptor<Upstream>, detail::counting_state<Upstream>, Upstream> {
  using base = adaptor_base<statistics_adaptor, detail::counting_state<Upstream>, Upstream>;

public:
  /// Throws std::bad_alloc.
  explicit statistics_adaptor(Upstream upstream) : base{new detail::counting_state<Upstream>{std::move(upstream)}} {}

  /// The counters since the last push (or the beginning). Any thread.
  allocation_counts counters() const { return this->shared().counters().read(); }

  /// Begins nested counters at zero; gives those counted so far at the level above. Throws std::bad_alloc. Any thread.
  allocation_counts push_counters() { return this->shared().counters().push(); }

  /// Ends nested counters and gives them. They are folded into the level above: its value and total grow by theirs, its
  /// peak is at least its value at the push and their peak. Throws std::out_of_range for the last level. Any thread.
  allocation_counts pop_counters() { return this->shared().counters().pop(); }
};

} // namespace gpumem
