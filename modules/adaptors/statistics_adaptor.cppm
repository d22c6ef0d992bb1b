// statistics_adaptor: counts bytes and allocations, each with current, peak and total value.
// SPDX-License-Identifier: Apache-2.0
module;
#include <list>
export module gpumem:statistics_adaptor;
import :adaptor_base;
import :cuda;
import :std;
import :stream;
import :sync;

namespace gpumem {

/// One counted quantity since its counters were pushed. `value` is negative if more was freed than allocated since.
export struct counter {
  std::int64_t value = 0; ///< allocated less freed
  std::int64_t peak = 0;  ///< the highest `value`
  std::int64_t total = 0; ///< allocated, whether freed or not

  friend bool operator==(counter const&, counter const&) = default;
};

/// The counters of a statistics_adaptor.
export struct allocation_counts {
  counter bytes;       ///< of live blocks, as requested
  counter allocations; ///< number of live blocks

  friend bool operator==(allocation_counts const&, allocation_counts const&) = default;
};

namespace detail {

// Up to 64 threads each write a slot of their own. When the pending amount of a slot reaches a threshold, it and
// its peak are published under the lock. All other threads share one slot under the same lock. Only push() allocates
// host memory.
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

  // One quantity in a slot. `pending` and `pending_peak` count from the last publication.
  struct share {
    std::atomic<std::int64_t> allocated{0};
    std::atomic<std::int64_t> freed{0};
    std::atomic<std::int64_t> pending{0};
    std::atomic<std::int64_t> pending_peak{0};
  };
  struct alignas(128) slot {
    share bytes;
    share count;
    std::atomic<std::uint64_t> level{0}; // the level of push() that pending_peak belongs to
  };
  struct level_base {
    std::int64_t current = 0;
    std::int64_t total = 0;
    std::int64_t peak = 0; // not relative to `current`
  };
  struct level {
    level_base bytes;
    level_base count;
  };

  void add(std::int64_t bytes, std::int64_t count) noexcept;
  bool add_to(slot& mine, std::int64_t bytes, std::int64_t count) noexcept;
  static void add_share(share& mine, std::int64_t amount, bool new_level) noexcept;
  void publish(slot& mine) noexcept __attribute__((requires_capability(mutex_)));
  void publish_share(share& mine, std::int64_t& published, level_base& top) noexcept;
  level_base sum(share slot::* quantity, level_base const& top) const noexcept;
  level measure() const noexcept __attribute__((requires_capability(mutex_)));
  allocation_counts since_base(level const& now) const noexcept __attribute__((requires_capability(mutex_)));

  std::array<slot, slot_count + 1> slots_; // the last is shared
  alignas(128) std::atomic<std::uint64_t> level_number_{0};
  sync::spin_mutex mutex_;
  std::int64_t published_bytes_ __attribute__((guarded_by(mutex_))) = 0;
  std::int64_t published_count_ __attribute__((guarded_by(mutex_))) = 0;
  std::list<level> levels_ __attribute__((guarded_by(mutex_)));
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

/// Counts requested bytes and allocations. An allocation counts after the upstream has granted it, also if it waited; a
/// free counts before the upstream frees. Requests of 0 bytes do not count.
///
/// Values and totals are exact when no other thread allocates or frees. With several threads the peak of bytes is off
/// by at most 64 KiB for each, the peak of allocations by 64 for each; with one thread both are exact. A handle; see
/// adaptor_base.
export template <class Upstream>
class statistics_adaptor
    : public adaptor_base<statistics_adaptor<Upstream>, detail::counting_state<Upstream>, Upstream> {
  using base = adaptor_base<statistics_adaptor, detail::counting_state<Upstream>, Upstream>;

public:
  /// Throws std::bad_alloc.
  explicit statistics_adaptor(Upstream upstream) : base{new detail::counting_state<Upstream>{std::move(upstream)}} {}

  /// Returns the counters since the last push that was not popped, or since the construction. Any thread.
  allocation_counts counters() const { return this->shared().counters().read(); }

  /// Starts nested counters at zero. Returns the counters so far of the level above. Throws std::bad_alloc. Any thread.
  allocation_counts push_counters() { return this->shared().counters().push(); }

  /// Ends the nested counters and returns them. The level above includes them: its value and total grow by theirs, and
  /// its peak is at least its value at the push plus their peak. Throws std::out_of_range at the last level. Any
  /// thread.
  allocation_counts pop_counters() { return this->shared().counters().pop(); }
};

} // namespace gpumem
