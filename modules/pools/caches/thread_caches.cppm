// The thread caches of a pool: recently freed blocks, kept for the thread that freed them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:thread_caches;
import :block;
import :cache_budget;
import :large_cache;
import :relaxed_atomic;
import :shard_roles;
import :size_class;
import :std;
import :stream_cache;
import :stream_timeline;
import :stream_uses;
import :sync;
import :tuning;

namespace gpumem::detail {

/// Sums of the counts of all thread caches; exact while no cache changes.
export struct cache_counts {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t over_budget = 0;     ///< frees of small and medium blocks that found no budget for their size
  std::int64_t cached_requested = 0; ///< requested bytes of cached blocks, which the shards count as live
  std::array<cache_budget::usage, size_class::kinds> usage; ///< cached bytes and allowances (claimed but unused bytes)
  inline std::size_t cached() const noexcept {
    return usage[size_class::small].in_use + usage[size_class::medium].in_use + usage[size_class::large].in_use;
  }
};

/// Keeps freed blocks by thread index and stream. In the cache of a thread, each stream cache holds small and medium
/// blocks of one stream. The large cache holds the large blocks freed last, and medium blocks for which the stream
/// cache has no room. The blocks belong to the pool: any thread can flush them, that is, take them all out. A block
/// goes only to the stream that freed it, so it needs no wait; it serves requests of its own size or a little less.
/// Each kind of size has a budget. Only `ensure_storage` allocates host memory.
///
/// Each cache has a lock, far from the other caches' locks, that costs its own thread little and other threads much.
/// Threads with the highest indices share caches. `enabled()` is checked under that lock. So a flush after
/// `set_limits(false)` finds every block that was inserted before, and none is inserted afterwards.
export class thread_caches {
public:
  thread_caches() noexcept;
  thread_caches(thread_caches const&) = delete;
  thread_caches& operator=(thread_caches const&) = delete;

  /// Allocates the storage of the calling thread's cache, if it has none. The caller holds the locks of all shards.
  /// `thread`: the index of the calling thread. Throws std::bad_alloc.
  [[clang::requires_capability(all_shards)]] inline void ensure_storage(unsigned thread) {
    if (!has_storage(thread)) allocate_storage(cache_of(thread));
  }
  inline bool has_storage(unsigned thread) const noexcept {
    return cache_of(thread).storage.load(std::memory_order_relaxed) != nullptr;
  }

  /// Allocates a cached block of this size or a little more to the stream; null if there is none. Any thread; `thread`
  /// is its index.
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

  /// The result of an insert.
  struct result {
    bool inserted;
    block* evicted; ///< another block, which the caller must free; or null
  };
  /// Caches a live block whose last use, on its stream, is `use`. Any thread; `thread` is its index.
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

  /// Calls the function under the lock of the calling thread's cache. Returns false, and calls nothing, if caching is
  /// off. A flush after `set_limits(false)` waits for all calls that found caching on.
  template <class Function> inline bool call_if_enabled(Function function) noexcept {
    sync::biased_lock const held{cache_of(sync::thread_index()).mutex};
    if (!enabled()) return false;
    function();
    return true;
  }

  /// Sets whether blocks are cached, the budget of each kind in bytes, and the number of threads that share the budgets
  /// of small and medium blocks. `event_threshold_bytes`: bytes freed by a stream after which a free is not cached, so
  /// that it can record an event. SIZE_MAX: frees are not counted for events. The caller holds the locks of all shards.
  [[clang::requires_capability(all_shards)]] void set_limits(bool on,
                                                             std::array<std::size_t, size_class::kinds> const& limits,
                                                             std::size_t threads,
                                                             std::size_t event_threshold_bytes) noexcept;
  inline bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }
  inline std::size_t event_threshold_bytes() const noexcept {
    return event_threshold_bytes_.load(std::memory_order_relaxed);
  }
  /// Returns whether the cached bytes, allowances and unclaimed bytes add up to each budget. Called in `visit_locked`.
  bool is_balanced(cache_counts const& sum) const noexcept;
  /// Returns whether `max_budget_misses` frees of one cache have found no budget since the last flush. Then other
  /// caches hold the budget, for blocks that no request uses.
  inline bool budget_exhausted() const noexcept { return budget_exhausted_.load(std::memory_order_relaxed); }
  /// Removes and returns all blocks, linked by `next`. The caller holds the locks of all shards.
  [[clang::requires_capability(all_shards)]] block* flush() noexcept;

  /// Returns the requested bytes that the shards count as live although they lie in this thread's cache.
  inline std::int64_t cached_requested_of(unsigned thread) const noexcept { return cache_of(thread).cached_requested; }
  /// Returns the sums, which other threads may be changing. Any thread.
  cache_counts snapshot() const noexcept;
  /// Calls `visitor(counts)` with the sums while no cache changes. The caller holds the locks of all shards.
  template <class Visit> [[clang::requires_capability(all_shards)]] void visit_locked(Visit visitor) {
    with_all_locked([&] { visitor(snapshot()); });
  }

private:
  static constexpr unsigned biased_caches = sync::max_biased_threads;
  static constexpr unsigned shared_caches = biased_caches / 4;
  // Few in the tests in which a seed orders the threads, so that streams share stream caches there.
  static constexpr unsigned stream_cache_count = biased_caches / 4;

  // The blocks of one thread cache.
  struct alignas(false_sharing_distance) cache_storage {
    large_cache large_blocks;
    std::array<stream_cache, stream_cache_count> stream_caches;
    inline stream_cache& stream_cache_of(stream_timeline const& timeline) noexcept {
      return stream_caches[timeline.index() % stream_cache_count];
    }
  };
  // The holder of the lock changes it; any thread may read the counts.
  struct alignas(false_sharing_distance) thread_cache {
    sync::biased_mutex mutex;
    std::uint32_t budget_misses __attribute__((guarded_by(mutex))) =
        0; // frees since the last flush for which no budget was left
    relaxed_atomic<std::int64_t> cached_requested;
    relaxed_atomic<std::uint64_t> allocations, frees, over_budget;
    std::array<cache_budget::share, size_class::kinds> shares;
    std::atomic<cache_storage*> storage{nullptr}; // null until the thread has allocated
  };

  static inline unsigned cache_index(unsigned number) noexcept {
    return number < biased_caches ? number : biased_caches + number % shared_caches;
  }
  inline thread_cache& cache_of(unsigned number) noexcept { return caches_[cache_index(number)]; }
  inline thread_cache const& cache_of(unsigned number) const noexcept { return caches_[cache_index(number)]; }

  [[gnu::always_inline]] static inline block* pop_numbered(thread_cache& mine, stream_cache& in,
                                                           stream_timeline const& timeline, unsigned number) noexcept
      __attribute__((requires_capability(mine.mutex))) {
    auto* const found = in.timeline == &timeline ? in.pop_fitting(number) : nullptr;
    if (found) mine.shares[size_class::kind_of(found->bytes)].uncharge(found->bytes);
    return found;
  }
  [[gnu::always_inline]] static inline block* pop_large(thread_cache& mine, large_cache& large_blocks,
                                                        stream_timeline const& timeline, std::size_t bytes) noexcept
      __attribute__((requires_capability(mine.mutex))) {
    auto* const found = large_blocks.pop(timeline, bytes);
    if (found) mine.shares[size_class::large].uncharge(bytes);
    return found;
  }
  // Allocates a cached block to its stream.
  [[gnu::always_inline]] static inline block& mark_allocated(thread_cache& mine, block& found,
                                                             stream_timeline& timeline, std::size_t requested) noexcept
      __attribute__((requires_capability(mine.mutex))) {
    mine.cached_requested -= static_cast<std::int64_t>(requested); // the shard still counts the last requested size
    found.uses.clear();
    found.requested = requested;
    found.stream = &timeline;
    found.set_state(block_state::allocated);
    ++mine.allocations;
    return found;
  }
  // Marks a block that left the cache; its free is still to be done.
  static inline block& mark_evicted(thread_cache& mine, block& found) noexcept
      __attribute__((requires_capability(mine.mutex))) {
    found.set_state(block_state::evicted);
    mine.cached_requested -= static_cast<std::int64_t>(found.requested);
    return found;
  }
  // Puts a small or medium block into the stream cache. Returns nullopt for a medium block that finds no room there:
  // the caller then tries the large cache.
  [[gnu::always_inline]] inline std::optional<result> insert_numbered(thread_cache& mine, cache_storage& all,
                                                                      stream_cache& in, block& freed,
                                                                      stream_use const& use) noexcept
      __attribute__((requires_capability(mine.mutex))) {
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
                                                    block& freed, stream_use const& use) noexcept
      __attribute__((requires_capability(mine.mutex))) {
    auto& timeline = *use.timeline;
    auto const bytes = freed.bytes;
    bool const keeps = bytes <= largest_.load(std::memory_order_relaxed) && large_blocks.enabled();
    if (!keeps && large_blocks.empty()) return {false, nullptr};
    // Evicts a block even if the freed one is not cached: the pool may then join both to a larger range. Without this
    // eviction two of four recorded traces used .01 and .05 less of the reserved memory.
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
  // Makes an empty stream cache that of the stream. Returns whether the stream cache now belongs to the stream.
  inline bool bind(stream_cache& one, stream_timeline& timeline) noexcept {
    return one.timeline == &timeline || bind_empty(one, timeline);
  }
  // Counts a free, and returns whether it should record an event. Such a free is not cached, since events are recorded
  // under the shard's lock.
  [[gnu::always_inline]] inline bool event_due(stream_cache& one, stream_timeline& timeline,
                                               std::size_t bytes) noexcept {
    auto const threshold = event_threshold_bytes();
    if (threshold == SIZE_MAX) return timeline.event_request().raised(); // frees are not counted then
    one.unrecorded_bytes += bytes;
    bool const many = ++one.unrecorded_frees >= tuning::frees_per_batch || one.unrecorded_bytes >= threshold;
    if (many) [[unlikely]]
      flush_counters(one, timeline);
    return many || timeline.event_request().raised();
  }
  inline void count_budget_miss(thread_cache& mine) noexcept __attribute__((requires_capability(mine.mutex))) {
    ++mine.budget_misses;
    if (mine.budget_misses < tuning::max_budget_misses) [[likely]]
      return;
    if (!budget_exhausted()) budget_exhausted_.store(true, std::memory_order_relaxed);
  }
  [[gnu::always_inline]] static inline void count_cached(thread_cache& mine, block& freed,
                                                         stream_use const& use) noexcept
      __attribute__((requires_capability(mine.mutex))) {
    freed.uses.assign(use);
    freed.set_state(block_state::cached);
    ++mine.frees;
    mine.cached_requested += static_cast<std::int64_t>(freed.requested);
  }

  [[clang::requires_capability(all_shards)]] void allocate_storage(thread_cache& mine);
  // Slow paths. The attributes make these functions save the registers, so that the inlined fast paths need not.
  [[clang::preserve_most, gnu::visibility("hidden")]] bool bind_empty(stream_cache& one,
                                                                      stream_timeline& timeline) const noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] void flush_counters(stream_cache& one,
                                                                          stream_timeline& timeline) const noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] bool event_due_unbound(stream_timeline& timeline,
                                                                             std::size_t bytes) const noexcept;
  block& pop_largest(thread_cache& mine, stream_cache& in) noexcept __attribute__((requires_capability(mine.mutex)));
  static block* evict(thread_cache& mine, large_cache& large_blocks) noexcept
      __attribute__((requires_capability(mine.mutex)));
  [[clang::preserve_most, gnu::visibility("hidden")]] block* evict_for_other_stream(thread_cache& mine,
                                                                                    stream_cache& in) noexcept
      __attribute__((requires_capability(mine.mutex)));
  [[clang::preserve_most, gnu::visibility("hidden")]] block* evict_over_budget(thread_cache& mine, cache_storage& all,
                                                                               bool exhausted) noexcept
      __attribute__((requires_capability(mine.mutex)));
  block* evict_stale(thread_cache& mine, cache_storage& all) noexcept __attribute__((requires_capability(mine.mutex)));
  block* evict_all(thread_cache& from, cache_storage& all, block* others) noexcept
      __attribute__((requires_capability(from.mutex)));
  // Calls the function with the locks of all caches. Clang's analysis of locks is off here, since it does not follow
  // locks that a loop takes.
  template <class Function> [[clang::no_thread_safety_analysis]] void with_all_locked(Function function) noexcept {
    for (auto& each : caches_) each.mutex.request_revoke();
    sync::biased_mutex::fence_owner_threads();
    for (auto& each : caches_) each.mutex.lock_revoked();
    function();
    for (auto& each : caches_) each.mutex.unlock_revoked();
  }

  std::array<thread_cache, biased_caches + shared_caches> caches_;
  std::vector<std::unique_ptr<cache_storage>> all_storage_;
  std::atomic<bool> enabled_{false};
  std::atomic<bool> budget_exhausted_{false};
  std::atomic<std::size_t> event_threshold_bytes_{0};
  std::atomic<std::size_t> largest_{0}; // bytes of the largest block that is cached
  std::array<cache_budget, size_class::kinds> budgets_;
};

} // namespace gpumem::detail
