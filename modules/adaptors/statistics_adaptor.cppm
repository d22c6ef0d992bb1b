// statistics_adaptor: counts bytes and allocations, each with current, peak and total value.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <list>
export module gpumem:statistics_adaptor;
import :adaptor_base;
import :cuda;
import :std;
import :stream;
import :sync;

namespace gpumem {

/// One counted quantity. It starts at 0 when the adaptor is made and at each push_counters(). `value` is negative if
/// more was freed than allocated since that start.
export struct counter {
  std::int64_t value = 0; ///< allocated minus freed
  std::int64_t peak = 0;  ///< the highest `value`
  std::int64_t total = 0; ///< sum of all that was allocated, whether freed or not

  bool operator==(counter const&) const = default;
};

/// The counters of a statistics_adaptor.
export struct allocation_counts {
  counter bytes;       ///< bytes of live blocks, as requested
  counter allocations; ///< number of live blocks

  bool operator==(allocation_counts const&) const = default;
};

namespace detail {

// Up to 64 threads each count in a slot of their own, without a lock. The slot keeps the change (`pending`) that the
// sums of all threads do not include yet. When that reaches a threshold, the thread publishes it: adds it to the sums
// under `mutex_`, and raises the peak there. All other threads share one slot, under `mutex_`. Only push() allocates
// host memory.
class allocation_counters {
public:
  allocation_counters() : levels_(1) {}

  void granted(std::size_t bytes) noexcept;
  void freed(std::size_t bytes) noexcept;
  // Takes back the count of a free that the upstream has refused.
  void not_freed(std::size_t bytes) noexcept;
  allocation_counts read() noexcept;
  allocation_counts push();
  allocation_counts pop();

private:
  static constexpr std::int64_t publish_bytes = std::int64_t{64} << 10;
  static constexpr std::int64_t publish_count = 64;
  static constexpr unsigned slot_count = 64;

  // One quantity in a slot: all that the slot's thread has allocated and freed, and the change since it last published
  // (`pending`) with the peak of that change.
  struct share {
    std::atomic<std::int64_t> allocated{0};
    std::atomic<std::int64_t> freed{0};
    std::atomic<std::int64_t> pending{0};
    std::atomic<std::int64_t> pending_peak{0};
  };
  struct alignas(128) slot {
    share bytes;
    share count;
    std::atomic<std::uint64_t> level{0}; // level_number_ (below) when pending_peak was last set
  };
  // A level of counters begins at each push() and ends at its pop(). This is one quantity of a level.
  struct level_base {
    std::int64_t current = 0;
    std::int64_t total = 0;
    std::int64_t peak = 0; // absolute, not relative to `current`
  };
  struct level {
    level_base bytes;
    level_base count;
  };

  void add(std::int64_t bytes, std::int64_t count) noexcept;
  bool add_to(slot& slot, std::int64_t bytes, std::int64_t count) noexcept;
  static void add_share(share& share, std::int64_t amount, bool new_level) noexcept;
  void publish(slot& slot) noexcept GPUMEM_REQUIRES(mutex_);
  void publish_share(share& share, std::int64_t& published, level_base& top) noexcept;
  level_base sum(share slot::* quantity, level_base const& top) const noexcept;
  level measure() const noexcept GPUMEM_REQUIRES(mutex_);
  allocation_counts since_base(level const& now) const noexcept GPUMEM_REQUIRES(mutex_);

  std::array<slot, slot_count + 1> slots_; // all threads without a slot of their own share the last one
  alignas(128) std::atomic<std::uint64_t> level_number_{0}; // changes whenever a level begins or ends
  sync::spin_mutex mutex_;
  std::int64_t published_bytes_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::int64_t published_count_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::list<level> levels_ GPUMEM_GUARDED_BY(mutex_);
};

template <class Upstream> class counting_state final : public adaptor_state<counting_state<Upstream>, Upstream> {
public:
  using adaptor_state<counting_state, Upstream>::adaptor_state;
  allocation_counters& counters() noexcept { return counters_; }

private:
  friend class adaptor_state<counting_state, Upstream>;
  void on_granted(stream_key const&, void*, std::size_t bytes) noexcept { counters_.granted(bytes); }
  void on_free(stream_key const&, void*, std::size_t bytes) noexcept { counters_.freed(bytes); }
  void on_refused_free(stream_key const&, std::size_t bytes) noexcept { counters_.not_freed(bytes); }

  allocation_counters counters_;
};

} // namespace detail

/// Counts requested bytes and allocations. An allocation counts once the upstream has granted it, also if the request
/// had to wait. A free counts before the upstream frees; a free that the upstream refuses as misuse does not count.
/// Requests of 0 bytes do not count.
///
/// Values and totals are exact when no other thread allocates or frees meanwhile. Peaks are exact with one thread. With
/// several threads, each adds an error of at most 64 KiB to the peak of bytes, and of at most 64 to the peak of
/// allocations. Copies are handles to the same adaptor; see adaptor_base.
export template <class Upstream>
class statistics_adaptor
    : public adaptor_base<statistics_adaptor<Upstream>, detail::counting_state<Upstream>, Upstream> {
  using base = adaptor_base<statistics_adaptor, detail::counting_state<Upstream>, Upstream>;

public:
  /// Throws std::bad_alloc.
  explicit statistics_adaptor(Upstream upstream) : base{new detail::counting_state<Upstream>{std::move(upstream)}} {}

  /// Returns the counters since the last push_counters() that was not popped, or since the construction. Any thread.
  allocation_counts counters() const { return this->shared().counters().read(); }

  /// Starts a nested level of counters at zero. Returns the counters so far of the level that was innermost until now.
  /// Throws std::bad_alloc. Any thread.
  allocation_counts push_counters() { return this->shared().counters().push(); }

  /// Ends the innermost level and returns its counters. The level around it then includes them. The value and the total
  /// of that outer level grow by those of the ended level. The outer peak is at least the outer value at the push plus
  /// the peak of the ended level. Throws std::out_of_range if only the first level is left. Any thread.
  allocation_counts pop_counters() { return this->shared().counters().pop(); }
};

} // namespace gpumem
