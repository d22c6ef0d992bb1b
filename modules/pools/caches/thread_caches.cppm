// Last freed blocks, kept near the threads that freed them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:thread_caches;
import :block;
import :cache_budget;
import :large_cache;
import :relaxed_atomic;
import :size_class;
import :std;
import :stream_cache;
import :stream_timeline;
import :stream_uses;
import :sync;

namespace gpumem::detail {

/// Sums of what threads count for themselves; exact, whoever freed what, while none of them goes on.
export struct cache_counts {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t over_budget = 0;     ///< frees of small and medium blocks that found no budget for their size
  std::int64_t cached_requested = 0; ///< requested bytes that the shards count as live, and that are not
  std::array<cache_budget::usage, size_class::kinds> usage; ///< bytes, and what is in reserve for that
  inline std::size_t cached() const noexcept {
    return usage[size_class::small].in_use + usage[size_class::medium].in_use + usage[size_class::large].in_use;
  }
};

/// Freed blocks by thread index and stream: small and medium ones by size, and the last others, large ones and medium
/// ones that found no place there. They belong to the pool: anybody can flush them. A block goes out to the stream that
/// freed it and to no other, so what that was given before is before the next use; for its own size, or for one a
/// little smaller. What is kept comes out of a budget for each kind of size. Nothing here allocates but
/// `ensure_storage`.
///
/// Each cache has a lock of its own, far from those of others, which belongs to its thread; threads of the highest
/// numbers share cache. Whether to keep is asked under the lock: a flush that follows `set_limits(false)` finds every
/// block that was put before, and none is put after (O11).
export class thread_caches {
public:
  thread_caches() noexcept;
  thread_caches(thread_caches const&) = delete;
  thread_caches& operator=(thread_caches const&) = delete;

  /// Makes what the cache of the thread of number `thread`, the calling one, keeps blocks in, if there is none. Under
  /// the pool's lock. Throws std::bad_alloc.
  inline void ensure_storage(unsigned thread) {
    if (!has_storage(thread)) allocate_storage(cache_of(thread));
  }
  inline bool has_storage(unsigned thread) const noexcept {
    return cache_of(thread).storage.load(std::memory_order_relaxed) != nullptr;
  }

  /// A kept block of that size or a little more, granted to the stream again; or null. Any thread, of the index
  /// `thread`.
  [[gnu::always_inline]] inline block* pop(stream_timeline& timeline, size_class const& size, std::size_t requested,
                                           unsigned thread) noexcept {
    auto& mine = cache_of(thread);
    auto* const all = mine.storage.load(std::memory_order_acquire);
    if (!all) [[unlikely]]
      return nullptr;
    sync::biased_lock const held{mine.mutex};
    if (!enabled()) [[unlikely]]
      return nullptr;
    auto* found =
        size.is_numbered() ? pop_numbered(mine, all->stream_cache_of(timeline), timeline, size.number) : nullptr;
    if (!found && !size.is_small()) found = pop_large(mine, all->large_blocks, timeline, size.bytes);
    return found ? &mark_allocated(mine, *found, timeline, requested) : nullptr;
  }

  /// What became of a block that was put.
  struct result {
    bool inserted;
    block* evicted; ///< another block, for which there is no place any more; or null
  };
  /// Keeps a granted block whose last use, on its stream, is over by that use. Any thread, of the index `thread`.
  [[gnu::always_inline]] inline result insert(block& freed, stream_use const& use, unsigned thread) noexcept {
    auto& timeline = *use.timeline;
    auto& mine = cache_of(thread);
    auto* const all = mine.storage.load(std::memory_order_acquire);
    if (!all) [[unlikely]]
      return {false, nullptr};
    sync::biased_lock const held{mine.mutex};
    if (!enabled()) [[unlikely]]
      return {false, nullptr};
    auto& in = all->stream_cache_of(timeline);
    if (freed.class_number < size_class::count) {
      if (auto const numbered = insert_numbered(mine, *all, in, freed, use)) return *numbered;
    }
    return insert_large(mine, all->large_blocks, in, freed, use);
  }

  /// Links a granted block whose use is over to others that are to be made free; false: not now, as nothing is kept.
  /// Any thread; a flush that follows `set_limits(false)` comes after all of them.
  inline bool push_remote_free(block& freed, stream_use const& use, std::atomic<block*>& to) noexcept {
    sync::biased_lock const held{cache_of(sync::thread_index()).mutex};
    if (!enabled()) return false;
    freed.uses.assign(use);
    freed.set_state(block_state::remote_freed);
    freed.next = to.load(std::memory_order_relaxed);
    while (!to.compare_exchange_weak(freed.next, &freed, std::memory_order_release, std::memory_order_relaxed)) {}
    return true;
  }

  /// Whether any more are kept, most bytes of each kind, how many threads share those of small and medium blocks, and
  /// after how many bytes freed a stream's free goes another way, on which events may be recorded. Under the pool's
  /// lock.
  void set_limits(bool on, std::array<std::size_t, size_class::kinds> const& limits, std::size_t threads,
                  std::size_t event_threshold_bytes) noexcept;
  inline bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }
  inline std::size_t event_threshold_bytes() const noexcept {
    return event_threshold_bytes_.load(std::memory_order_relaxed);
  }
  /// What is kept, in reserve near threads and left is the budget, and no more is kept. Within `visit_locked`.
  bool is_balanced(cache_counts const& sum) const noexcept;
  /// Many frees have found no budget since the last flush: it is where it is of no use.
  inline bool budget_exhausted() const noexcept { return budget_exhausted_.load(std::memory_order_relaxed); }
  /// Takes everything out: the blocks, linked by `next`. Under the pool's lock.
  block* flush() noexcept;

  /// A thread's part of what shards count as live, and is not.
  inline std::int64_t cached_requested_of(unsigned thread) const noexcept { return cache_of(thread).cached_requested; }
  /// The sums as one finds them while threads go on. Any thread.
  cache_counts snapshot() const noexcept;
  /// Calls `visitor(counts)` with the sums while no cache changes. Under the pool's lock.
  template <class Visit> void visit_locked(Visit visitor) {
    lock_all();
    visitor(snapshot());
    unlock_all();
  }

private:
  static constexpr unsigned biased_caches = sync::max_biased_threads;
  static constexpr unsigned shared_caches = biased_caches / 4;
  static constexpr unsigned stream_cache_count = biased_caches / 4; // few where schedules are tried: streams meet there
  // So rarely does a free go another way, on which events may be recorded.
  static constexpr std::uint32_t event_threshold_frees = 64;
  static constexpr std::uint32_t max_foreign_frees = 16;
  static constexpr std::uint32_t max_budget_misses = 1 << 20;
  // Of a cache: so often it looks for what is kept for streams that have left it, and after so many they have.
  static constexpr std::uint32_t stale_scan_interval = 32;
  static constexpr std::uint32_t stale_after = 4096;

  // What a thread keeps.
  struct alignas(false_sharing_distance) cache_storage {
    large_cache large_blocks;
    std::array<stream_cache, stream_cache_count> stream_caches;
    inline stream_cache& stream_cache_of(stream_timeline const& timeline) noexcept {
      return stream_caches[timeline.index() % stream_cache_count];
    }
  };
  // Its lock's holder changes it; any thread reads the counts.
  struct alignas(false_sharing_distance) thread_cache {
    sync::biased_mutex mutex;
    std::uint32_t budget_misses = 0; // budget, so often since the last flush
    relaxed_atomic<std::int64_t> cached_requested;
    relaxed_atomic<std::uint64_t> allocations, frees, over_budget;
    std::array<cache_budget::share, size_class::kinds> shares;
    std::atomic<cache_storage*> storage{nullptr}; // of threads that have allocated
  };

  static inline unsigned cache_index(unsigned number) noexcept {
    return number < biased_caches ? number : biased_caches + number % shared_caches;
  }
  inline thread_cache& cache_of(unsigned number) noexcept { return caches_[cache_index(number)]; }
  inline thread_cache const& cache_of(unsigned number) const noexcept { return caches_[cache_index(number)]; }

  [[gnu::always_inline]] static inline block* pop_numbered(thread_cache& mine, stream_cache& in,
                                                           stream_timeline const& timeline, unsigned number) noexcept {
    auto* const found = in.timeline == &timeline ? in.pop_fitting(number) : nullptr;
    if (found) mine.shares[size_class::kind_of(found->bytes)].uncharge(found->bytes);
    return found;
  }
  [[gnu::always_inline]] static inline block* pop_large(thread_cache& mine, large_cache& large_blocks,
                                                        stream_timeline const& timeline, std::size_t bytes) noexcept {
    auto* const found = large_blocks.pop(timeline, bytes);
    if (found) mine.shares[size_class::large].uncharge(bytes);
    return found;
  }
  // To whom it was kept for.
  [[gnu::always_inline]] static inline block&
  mark_allocated(thread_cache& mine, block& found, stream_timeline& timeline, std::size_t requested) noexcept {
    mine.cached_requested -= static_cast<std::int64_t>(requested); // beside what is no longer kept
    found.uses.clear();
    found.requested = requested;
    found.stream = &timeline;
    found.set_state(block_state::allocated);
    ++mine.allocations;
    return found;
  }
  // On its way to be free.
  static inline block& mark_evicted(thread_cache& mine, block& found) noexcept {
    found.set_state(block_state::evicted);
    mine.cached_requested -= static_cast<std::int64_t>(found.requested);
    return found;
  }
  // None: a medium block for which there is no place; it may be kept among the last ones.
  [[gnu::always_inline]] inline std::optional<result> insert_numbered(thread_cache& mine, cache_storage& all,
                                                                      stream_cache& in, block& freed,
                                                                      stream_use const& use) noexcept {
    auto& timeline = *use.timeline;
    auto const kind = size_class::kind_of(freed.bytes);
    auto& from = budgets_[kind];
    auto& share = mine.shares[kind];
    block* evicted = nullptr;
    if (!bind(in, timeline)) [[unlikely]] {
      evicted = evict_for_other_stream(mine, in);
    } else if (!from.charge(share, freed.bytes)) {
      evicted = evict_over_budget(mine, all, from.unclaimed() < static_cast<std::int64_t>(freed.bytes));
    } else if (event_due(in, timeline, freed.bytes)) [[unlikely]] {
      share.uncharge(freed.bytes);
      return result{false, nullptr};
    } else {
      count_cached(mine, freed, use);
      in.push(freed);
      in.last_insert = mine.over_budget;
      in.foreign_frees = 0;
      return result{true, nullptr};
    }
    if (evicted || kind == size_class::small) return result{false, evicted};
    return {};
  }
  [[gnu::always_inline]] inline result insert_large(thread_cache& mine, large_cache& large_blocks, stream_cache& in,
                                                    block& freed, stream_use const& use) noexcept {
    auto& timeline = *use.timeline;
    auto const bytes = freed.bytes;
    bool const keeps = bytes <= largest_.load(std::memory_order_relaxed) && large_blocks.enabled();
    if (!keeps && large_blocks.empty()) return {false, nullptr};
    // Also where this one is too large: with what is kept it may become a larger range. Without that two of four
    // recorded traces used .01 and .05 less of what is reserved.
    if (!keeps) return {false, evict(mine, large_blocks)};
    if (bind(in, timeline) ? event_due(in, timeline, bytes) : event_due_unbound(timeline, bytes)) [[unlikely]]
      return {false, nullptr};
    auto& from = budgets_[size_class::large];
    auto& share = mine.shares[size_class::large];
    bool paid = !large_blocks.full() && from.charge(share, bytes);
    auto* const evicted = paid ? nullptr : evict(mine, large_blocks);
    paid = paid || from.charge(share, bytes);
    if (!paid) [[unlikely]] {
      if (from.unclaimed() < static_cast<std::int64_t>(bytes)) count_budget_miss(mine);
      return {false, evicted};
    }
    count_cached(mine, freed, use);
    large_blocks.insert(freed);
    return {true, evicted};
  }
  // One stream for each stream cache.
  inline bool bind(stream_cache& one, stream_timeline& timeline) noexcept {
    return one.timeline == &timeline || bind_empty(one, timeline);
  }
  // Whether this free should leave an event, which it does where it takes the pool's lock.
  [[gnu::always_inline]] inline bool event_due(stream_cache& one, stream_timeline& timeline,
                                               std::size_t bytes) noexcept {
    auto const threshold = event_threshold_bytes();
    if (threshold == SIZE_MAX) return timeline.event_requested(); // nobody else would
    one.unrecorded_bytes += bytes;
    bool const many = ++one.unrecorded_frees >= event_threshold_frees || one.unrecorded_bytes >= threshold;
    if (many) [[unlikely]]
      flush_counters(one, timeline);
    return many || timeline.event_requested();
  }
  inline void count_budget_miss(thread_cache& mine) noexcept {
    ++mine.budget_misses;
    if (mine.budget_misses < max_budget_misses) [[likely]]
      return;
    if (!budget_exhausted()) budget_exhausted_.store(true, std::memory_order_relaxed);
  }
  [[gnu::always_inline]] static inline void count_cached(thread_cache& mine, block& freed,
                                                         stream_use const& use) noexcept {
    freed.uses.assign(use);
    freed.set_state(block_state::cached);
    ++mine.frees;
    mine.cached_requested += static_cast<std::int64_t>(freed.requested);
  }

  void allocate_storage(thread_cache& mine);
  // Rare: see sync::spin_mutex.
  [[clang::preserve_most, gnu::visibility("hidden")]] bool bind_empty(stream_cache& one,
                                                                      stream_timeline& timeline) const noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] void flush_counters(stream_cache& one,
                                                                          stream_timeline& timeline) const noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] bool event_due_unbound(stream_timeline& timeline,
                                                                             std::size_t bytes) const noexcept;
  block& pop_largest(thread_cache& mine, stream_cache& in) noexcept;
  static block* evict(thread_cache& mine, large_cache& large_blocks) noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] block* evict_for_other_stream(thread_cache& mine,
                                                                                    stream_cache& in) noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] block* evict_over_budget(thread_cache& mine, cache_storage& all,
                                                                               bool exhausted) noexcept;
  block* evict_stale(thread_cache& mine, cache_storage& all) noexcept;
  block* evict_all(thread_cache& from, cache_storage& all, block* others) noexcept;
  void lock_all() noexcept;
  void unlock_all() noexcept;

  std::array<thread_cache, biased_caches + shared_caches> caches_;
  std::vector<std::unique_ptr<cache_storage>> all_storage_;
  std::atomic<bool> enabled_{false};
  std::atomic<bool> budget_exhausted_{false};
  std::atomic<std::size_t> event_threshold_bytes_{0};
  std::atomic<std::size_t> largest_{0}; // that is kept
  std::array<cache_budget, size_class::kinds> budgets_;
};

} // namespace gpumem::detail
