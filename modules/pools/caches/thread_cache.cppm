// The cache of one thread: blocks that the thread has freed. It may allocate them again without the lock of a shard.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:thread_cache;
import :block;
import :cache_budget;
import :cache_limits;
import :large_cache;
import :std;
import :stream_cache;
import :stream_timeline;
import :sync;
import :tuning;

namespace gpumem::detail {

/// Sums of the counts of all thread caches; exact while no cache changes.
export struct cache_counts {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t over_budget = 0;     ///< frees of small and medium blocks for which the cache had no budget
  std::int64_t cached_requested = 0; ///< requested bytes that the pool's shards count as live although they are cached
  cache_limits::usage usage;         ///< bytes by kind of size
  inline std::size_t cached() const noexcept {
    return usage[size_class::small].in_use + usage[size_class::medium].in_use + usage[size_class::large].in_use;
  }
};

/// Freed blocks by stream. Stream caches hold small and medium blocks. The large cache holds the last large blocks, and
/// medium ones for which the stream caches have no room. A block serves only the stream that freed it, so no stream
/// waits for another. It serves requests of its own size or a little less. The cache holds no block before
/// allocate_storage(), which alone allocates host memory.
///
/// The holder of `mutex` changes the cache; any thread may read the counts. pop() and insert() take the mutex, and read
/// under it the limits that all caches of the pool share.
export class alignas(false_sharing_distance) thread_cache {
public:
  sync::biased_mutex mutex; ///< cheap for the one thread that mostly locks it, unless several threads share the cache

  inline bool has_storage() const noexcept { return storage_.load(std::memory_order_relaxed) != nullptr; }
  /// Allocates the memory of the stream caches and the large cache. One thread at a time. Throws std::bad_alloc.
  void allocate_storage();

  /// Allocates a cached block of this size or a little more to the stream; null if there is none.
  [[gnu::always_inline]] inline block* pop(cache_limits const& limits, stream_timeline& timeline,
                                           size_class const& size, std::size_t requested) noexcept {
    auto* const all = storage_.load(std::memory_order_acquire);
    if (!all) [[unlikely]]
      return nullptr;
    sync::biased_lock const held{mutex};
    if (!limits.enabled()) [[unlikely]]
      return nullptr;
    auto* found = size.is_numbered() ? pop_numbered(all->stream_cache_of(timeline), timeline, size.number) : nullptr;
    if (!found && !size.is_small()) found = pop_large(all->large_blocks, timeline, size.bytes);
    return found ? &mark_allocated(*found, timeline, requested) : nullptr;
  }

  /// The result of an insert.
  struct result {
    bool inserted;
    block* evicted; ///< a block that has left the cache, for the caller to free in its shard; null: none
  };
  /// Caches a live block whose last use, by the stream of the free, is `use`.
  [[gnu::always_inline]] inline result insert(cache_limits& limits, block& freed, stream_use const& use) noexcept {
    auto& timeline = *use.timeline;
    auto* const all = storage_.load(std::memory_order_acquire);
    if (!all) [[unlikely]]
      return {false, nullptr};
    sync::biased_lock const held{mutex};
    if (!limits.enabled()) [[unlikely]]
      return {false, nullptr};
    auto& in = all->stream_cache_of(timeline);
    if (freed.class_number < size_class::count) {
      if (auto const numbered = insert_numbered(limits, *all, in, freed, use)) return *numbered;
    }
    return insert_large(limits, all->large_blocks, in, freed, use);
  }
  /// Removes all blocks, and gives their bytes back to the budgets. Links the blocks by `next`, and the last of them to
  /// `others`. Returns the first block.
  block* flush(cache_limits& limits, block* others) noexcept __attribute__((requires_capability(mutex)));

  /// Returns the requested bytes that the shards count as live although they lie in this cache.
  inline std::int64_t cached_requested() const noexcept { return cached_requested_; }
  /// Adds the counts of this cache to the sums.
  void add_to(cache_counts& sums) const noexcept;

private:
  // 16; in the library for schedule tests 1, so that all streams of a thread share one stream cache.
  static constexpr unsigned stream_cache_count = sync::max_biased_threads / 4;
  // The caches that hold the blocks. Streams whose indices have the same remainder share a stream cache.
  struct alignas(false_sharing_distance) cache_storage {
    large_cache large_blocks;
    std::array<stream_cache, stream_cache_count> stream_caches;
    inline stream_cache& stream_cache_of(stream_timeline const& timeline) noexcept {
      return stream_caches[timeline.index() % stream_cache_count];
    }
  };

  [[gnu::always_inline]] inline block* pop_numbered(stream_cache& in, stream_timeline const& timeline,
                                                    unsigned number) noexcept
      __attribute__((requires_capability(mutex))) {
    auto* const found = in.timeline == &timeline ? in.pop_fitting(number) : nullptr;
    if (found) shares_[size_class::kind_of(found->bytes)].uncharge(found->bytes);
    return found;
  }
  [[gnu::always_inline]] inline block* pop_large(large_cache& large_blocks, stream_timeline const& timeline,
                                                 std::size_t bytes) noexcept
      __attribute__((requires_capability(mutex))) {
    auto* const found = large_blocks.pop(timeline, bytes);
    if (found) shares_[size_class::large].uncharge(bytes);
    return found;
  }
  // Allocates a cached block to its stream.
  [[gnu::always_inline]] inline block& mark_allocated(block& found, stream_timeline& timeline,
                                                      std::size_t requested) noexcept
      __attribute__((requires_capability(mutex))) {
    // The shard still counts the bytes of the block's earlier request as live. So `cached_requested_` keeps the earlier
    // request less the new one, by which the shard counts too much.
    cached_requested_ -= static_cast<std::int64_t>(requested);
    found.uses.clear();
    found.requested = requested;
    found.stream = &timeline;
    found.set_state(block_state::allocated);
    ++allocations_;
    return found;
  }
  // Marks a block that has left the cache, and that the caller has not freed in its shard yet.
  inline block& mark_evicted(block& found) noexcept __attribute__((requires_capability(mutex))) {
    found.set_state(block_state::evicted);
    cached_requested_ -= static_cast<std::int64_t>(found.requested);
    return found;
  }
  // Inserts a small or medium block into a stream cache. Returns nullopt for a medium block that got no room there: the
  // large cache may take it.
  [[gnu::always_inline]] inline std::optional<result> insert_numbered(cache_limits& limits, cache_storage& all,
                                                                      stream_cache& in, block& freed,
                                                                      stream_use const& use) noexcept
      __attribute__((requires_capability(mutex))) {
    auto& timeline = *use.timeline;
    auto const kind = size_class::kind_of(freed.bytes);
    auto& from = limits.budget(kind);
    auto& share = shares_[kind];
    block* evicted = nullptr;
    if (!bind(limits, in, timeline)) [[unlikely]] {
      evicted = evict_for_other_stream(in);
    } else if (!from.charge(share, freed.bytes)) {
      evicted = evict_over_budget(limits, all, from.unclaimed() < static_cast<std::int64_t>(freed.bytes));
    } else if (in.event_due(timeline, freed.bytes, limits.event_threshold_bytes())) [[unlikely]] {
      share.uncharge(freed.bytes);
      return result{false, nullptr};
    } else {
      count_cached(freed, use);
      in.push(freed);
      in.last_insert = over_budget_;
      in.foreign_frees = 0;
      return result{true, nullptr};
    }
    if (evicted || kind == size_class::small) return result{false, evicted};
    return {};
  }
  [[gnu::always_inline]] inline result insert_large(cache_limits& limits, large_cache& large_blocks, stream_cache& in,
                                                    block& freed, stream_use const& use) noexcept
      __attribute__((requires_capability(mutex))) {
    auto& timeline = *use.timeline;
    auto const bytes = freed.bytes;
    bool const keeps = bytes <= limits.largest_block() && large_blocks.enabled();
    if (!keeps && large_blocks.empty()) return {false, nullptr};
    // Evicts a block even if the freed one is not cached: both may coalesce to a larger range. Without this, the used
    // part of the reserved memory fell by .01 and .05 in two of four recorded traces.
    if (!keeps) return {false, evict_large(large_blocks)};
    bool const bound = bind(limits, in, timeline);
    if (!bound && !limits.serves(timeline.device())) [[unlikely]]
      return {false, nullptr};
    if (bound ? in.event_due(timeline, bytes, limits.event_threshold_bytes())
              : stream_cache::event_due_unbound(timeline, bytes, limits.event_threshold_bytes())) [[unlikely]]
      return {false, nullptr};
    auto& from = limits.budget(size_class::large);
    auto& share = shares_[size_class::large];
    bool paid = !large_blocks.full() && from.charge(share, bytes);
    auto* const evicted = paid ? nullptr : evict_large(large_blocks);
    paid = paid || from.charge(share, bytes);
    if (!paid) [[unlikely]] {
      if (from.unclaimed() < static_cast<std::int64_t>(bytes)) count_budget_miss(limits);
      return {false, evicted};
    }
    count_cached(freed, use);
    large_blocks.insert(freed);
    return {true, evicted};
  }
  // Gives the stream cache to the stream if it is empty and the stream's device may use the pool's memory. Returns
  // whether it belongs to the stream now.
  static inline bool bind(cache_limits const& limits, stream_cache& one, stream_timeline& timeline) noexcept {
    return one.timeline == &timeline ||
           (limits.serves(timeline.device()) && one.bind_if_empty(timeline, limits.event_threshold_bytes()));
  }
  inline void count_budget_miss(cache_limits& limits) noexcept __attribute__((requires_capability(mutex))) {
    ++budget_misses_;
    if (budget_misses_ < tuning::max_budget_misses) [[likely]]
      return;
    limits.note_exhausted();
  }
  [[gnu::always_inline]] inline void count_cached(block& freed, stream_use const& use) noexcept
      __attribute__((requires_capability(mutex))) {
    freed.uses.assign(use);
    freed.set_state(block_state::cached);
    ++frees_;
    cached_requested_ += static_cast<std::int64_t>(freed.requested);
  }

  block& pop_largest(stream_cache& in) noexcept __attribute__((requires_capability(mutex)));
  block* evict_large(large_cache& large_blocks) noexcept __attribute__((requires_capability(mutex)));
  // Slow paths. With preserve_most they save the registers that they change, so that their inlined callers need not.
  [[clang::preserve_most, gnu::visibility("hidden")]] block* evict_for_other_stream(stream_cache& in) noexcept
      __attribute__((requires_capability(mutex)));
  [[clang::preserve_most, gnu::visibility("hidden")]] block* evict_over_budget(cache_limits& limits, cache_storage& all,
                                                                               bool exhausted) noexcept
      __attribute__((requires_capability(mutex)));
  block* evict_stale(cache_storage& all) noexcept __attribute__((requires_capability(mutex)));

  std::uint32_t budget_misses_ __attribute__((guarded_by(mutex))) =
      0; // frees since the last flush for which no budget was left
  relaxed_atomic<std::int64_t> cached_requested_;
  relaxed_atomic<std::uint64_t> allocations_, frees_, over_budget_;
  std::array<cache_budget::share, size_class::kinds> shares_;
  std::atomic<cache_storage*> storage_{nullptr}; // *owned_storage_, for threads that read it without a lock
  std::unique_ptr<cache_storage> owned_storage_;
};

} // namespace gpumem::detail
