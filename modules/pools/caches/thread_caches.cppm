// The thread caches of a pool: the cache of one thread, its stream caches and its large cache.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstdint>
export module gpumem:thread_caches;
import :stream_epochs;
import :block;
import :cache_limits;
import :hash;
import :shard_roles;
import :std;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// Lists of small and medium blocks, and counts of the stream's frees. Guarded by the lock of the thread cache that it
/// is a part of.
export struct stream_cache {
  /// From this size class on, a stream cache also serves a request by a block of the next two classes, which are at
  /// most a quarter larger. Utilization: half -.015 to +.012, double +.018.
  static constexpr unsigned first_close_class = 8;

  stream_timeline* timeline = nullptr;
  std::uint32_t count = 0;            ///< number of blocks
  std::uint32_t unrecorded_frees = 0; ///< frees since the last flush_counters(), also of large blocks
  std::size_t unrecorded_bytes = 0;
  std::uint64_t last_insert = 0;                 ///< the thread cache's count of frees without room, at the last insert
  std::array<block*, size_class::count> lists{}; ///< by class number; the newest first

  /// Removes and returns the newest block of this class; null if there is none. For classes from `first_close_class` on
  /// also tries the next two classes, whose blocks are at most a quarter larger. With random sizes that saves many
  /// searches of free ranges.
  [[gnu::always_inline]] inline block* pop_fitting(unsigned number) noexcept {
    if (lists[number]) [[likely]]
      return &pop(lists[number]);
    if (number < first_close_class || number + 2 >= size_class::count) return nullptr;
    if (auto& next = lists[number + 1]) return &pop(next);
    auto& after = lists[number + 2];
    return after ? &pop(after) : nullptr;
  }
  inline void push(block& returned) noexcept {
    auto& to = lists[returned.class_number];
    returned.next = to;
    to = &returned;
    ++count;
  }
  inline block& pop(block*& head) noexcept {
    auto& found = *head;
    head = found.next;
    --count;
    return found;
  }
  /// Removes and returns a block of the largest class. The cache must not be empty.
  block& pop_largest() noexcept;

  // `threshold`, here and below: cache_limits::threshold().
  /// Gives the cache to a stream if the cache is empty, and returns whether it was. A slow path, as are the two others
  /// with these attributes: with preserve_most the function saves the registers, so that its callers need not.
  [[clang::preserve_most, gnu::visibility("hidden")]] bool bind_if_empty(stream_timeline& next,
                                                                         event_threshold threshold) noexcept;
  /// Counts a free of `stream`, whose cache this is. Returns whether this free should record an event. If so, the block
  /// is not cached but freed in its shard, where an event is recorded under the shard's lock.
  [[gnu::always_inline]] inline bool event_due(stream_timeline& stream, std::size_t bytes,
                                               event_threshold threshold) noexcept {
    if (!threshold.counts_frees()) return stream.event_request().raised(); // frees are not counted then
    unrecorded_bytes += bytes;
    bool const many = ++unrecorded_frees >= stream_epochs::frees_per_batch || unrecorded_bytes >= threshold.bytes();
    if (many) [[unlikely]]
      flush_counters(stream, threshold);
    return many || stream.event_request().raised();
  }
  /// Like event_due(), but for a stream without a stream cache: another stream has the one that both share.
  [[clang::preserve_most, gnu::visibility("hidden")]] static bool
  event_due_unbound(stream_timeline& stream, std::size_t bytes, event_threshold threshold) noexcept;

private:
  [[clang::preserve_most, gnu::visibility("hidden")]] void flush_counters(stream_timeline& stream,
                                                                          event_threshold threshold) noexcept;
};

/// Up to eight freed blocks, found by stream and exact size. Programs request most large sizes again at once or not at
/// all. On recorded traces of training and inference the last eight blocks serve a tenth to a half of all requests.
/// Other blocks are evicted, so that they soon coalesce with their neighbours. If the cached blocks are not requested,
/// the cache takes no blocks for a while. Guarded by the lock of the thread cache that it is a part of.
export class large_cache {
public:
  static constexpr unsigned capacity = 8;
  /// A large cache takes blocks while its score is above 0. A hit (a request gets a cached block) adds
  /// `large_hit_score`, up to `max_large_score`; an eviction subtracts 1. Some time after the score has become 0, a
  /// trial begins: the score is set to `large_trial_score`. A hit saves two calls of a shard, and an eviction costs a
  /// part of one. That an eviction costs a fifth of what a hit saves is a guess.
  /// Utilization, large_hit_score: half -.009 to +.011, double +.004; large_trial_score: half -.004, double -.006 to
  /// +.012; max_large_score: half -.006 to +.023, double -.017 to +.004.
  static constexpr int large_hit_score = 5, large_trial_score = 16, max_large_score = 256;
  /// A large cache whose score is 0 begins a trial after it has refused this many blocks.
  /// Utilization: half -.005 to +.009, double -.006 to +.005.
  static constexpr std::uint32_t max_skipped_blocks = 1024;

  inline bool empty() const noexcept { return used_ == 0; }
  inline bool full() const noexcept { return used_ == (1u << capacity) - 1; }
  /// Returns whether the next freed block is to be inserted: whether cached blocks have been requested lately. If they
  /// have not, every `max_skipped_blocks`th call raises the score, so that some blocks are inserted for a trial.
  inline bool enabled() noexcept {
    if (score_ > 0) [[likely]]
      return true;
    ++skipped_;
    if (skipped_ < max_skipped_blocks) return false;
    skipped_ = 0;
    score_ = large_trial_score;
    return true;
  }

  /// Removes and returns a block of this size that the stream has freed; null if there is none.
  [[gnu::always_inline]] inline block* pop(stream_timeline const& timeline, std::size_t bytes) noexcept {
    for (auto found = matching(fingerprint_of(timeline, bytes)) & used_; found; found &= found - 1) {
      auto const i = static_cast<unsigned>(std::countr_zero(found));
      auto& kept = *cells_[i];
      if (kept.bytes != bytes || kept.uses.begin()->timeline != &timeline) [[unlikely]]
        continue; // another block with the same fingerprint
      clear(i);
      score_ = std::min(score_ + large_hit_score, max_large_score);
      return &kept;
    }
    return nullptr;
  }
  /// Inserts a block, which later serves the stream of its only use. The cache is not full.
  [[gnu::always_inline]] inline void insert(block& returned) noexcept {
    auto const i = static_cast<unsigned>(std::countr_one(used_));
    auto const fingerprint = fingerprint_of(*returned.uses.begin()->timeline, returned.bytes);
    cells_[i] = &returned;
    // Writes all fingerprints at once, because pop() reads all at once: a load stalls if the store before it was
    // narrower.
    fingerprints_ = cell_numbers == i ? fingerprints{} + fingerprint : fingerprints_;
    used_ |= 1u << i;
  }
  /// Removes and returns one block, taking the cells in turn; null if the cache is empty. Lowers the score, because no
  /// request has used the block.
  inline block* evict() noexcept {
    if (score_ > 0) score_ -= 1;
    return pop_any();
  }
  /// Does what evict() does, but keeps the score: for a flush, since the block might have been requested later.
  block* pop_any() noexcept;

private:
  using fingerprints [[gnu::vector_size(capacity * sizeof(std::uint32_t))]] = std::uint32_t;

  static inline std::uint32_t fingerprint_of(stream_timeline const& timeline, std::size_t bytes) noexcept {
    return static_cast<std::uint32_t>(fibonacci_hash(bytes + reinterpret_cast<std::uintptr_t>(&timeline)) >> 32);
  }
  // Returns a mask of the cells with this fingerprint. Cells without a block may be among them.
  inline std::uint32_t matching(std::uint32_t fingerprint) const noexcept {
    auto const same = fingerprints_ == fingerprint;
#ifdef __clang__
    using matches = bool __attribute__((ext_vector_type(capacity))); // GCC has no vectors of bool
    return std::bit_cast<std::uint8_t>(__builtin_convertvector(same, matches));
#else
    std::uint32_t found = 0;
    for (unsigned i = 0; i < capacity; ++i) found |= (same[i] & 1u) << i;
    return found;
#endif
  }
  static constexpr fingerprints cell_numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  inline void clear(unsigned i) noexcept { used_ &= ~(1u << i); }

  fingerprints fingerprints_{};
  std::array<block*, capacity> cells_{};
  std::uint32_t used_ = 0; // a mask of the cells with a block
  unsigned next_ = 0;      // the cell that is evicted next
  int score_ = max_large_score / 4;
  std::uint32_t skipped_ = 0;
};

/// Sums of the counts of all thread caches; exact while no cache changes.
export struct cache_counts {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t refused = 0;         ///< frees of small and medium blocks for which the cache had no room
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
  /// After this many frees of one thread have found no room in the whole budget, the blocks of all thread caches go
  /// back to the shards. Utilization: no change.
  static constexpr std::uint32_t max_budget_misses = 1 << 20;

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
  [[gnu::always_inline]] inline result insert(cache_limits& limits, block& returned, stream_use const& use) noexcept {
    auto& timeline = *use.timeline;
    auto* const storage = storage_.load(std::memory_order_acquire);
    if (!storage) [[unlikely]]
      return {false, nullptr};
    sync::biased_lock const held{mutex};
    if (!limits.enabled()) [[unlikely]]
      return {false, nullptr};
    auto& in = storage->stream_cache_of(timeline);
    if (returned.class_number < size_class::count) {
      if (auto const numbered = insert_numbered(limits, *storage, in, returned, use)) return *numbered;
    }
    return insert_large(limits, storage->large_blocks, in, returned, use);
  }
  /// Removes all blocks, and gives their bytes back to the budgets. Links the blocks by `next`, and the last of them to
  /// `chain`. Returns the first block.
  block* flush(cache_limits& limits, block* chain) noexcept GPUMEM_REQUIRES(mutex);

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

  [[gnu::always_inline]] inline block* pop_numbered(stream_cache& cache, stream_timeline const& timeline,
                                                    unsigned number) noexcept GPUMEM_REQUIRES(mutex) {
    auto* const found = cache.timeline == &timeline ? cache.pop_fitting(number) : nullptr;
    if (found) shares_[size_class::kind_of(found->bytes)].uncharge(found->bytes);
    return found;
  }
  [[gnu::always_inline]] inline block* pop_large(large_cache& large_blocks, stream_timeline const& timeline,
                                                 std::size_t bytes) noexcept GPUMEM_REQUIRES(mutex) {
    auto* const found = large_blocks.pop(timeline, bytes);
    if (found) shares_[size_class::large].uncharge(bytes);
    return found;
  }
  // Allocates a cached block to its stream.
  [[gnu::always_inline]] inline block& mark_allocated(block& block, stream_timeline& timeline,
                                                      std::size_t requested) noexcept GPUMEM_REQUIRES(mutex) {
    // The shard still counts the bytes of the block's earlier request as live. So `cached_requested_` keeps the earlier
    // request less the new one, by which the shard counts too much.
    cached_requested_ -= static_cast<std::int64_t>(requested);
    block.uses.clear();
    block.requested = requested;
    block.stream = &timeline;
    block.set_state(block_state::allocated);
    ++allocations_;
    return block;
  }
  // Marks a block that has left the cache, and that the caller has not freed in its shard yet.
  inline block& mark_evicted(block& block) noexcept GPUMEM_REQUIRES(mutex) {
    block.set_state(block_state::evicted);
    cached_requested_ -= static_cast<std::int64_t>(block.requested);
    return block;
  }
  // Inserts a small or medium block into a stream cache. Returns nullopt for a medium block that got no room there: the
  // large cache may take it.
  [[gnu::always_inline]] inline std::optional<result> insert_numbered(cache_limits& limits, cache_storage& storage,
                                                                      stream_cache& cache, block& returned,
                                                                      stream_use const& use) noexcept
      GPUMEM_REQUIRES(mutex) {
    auto& timeline = *use.timeline;
    auto const kind = size_class::kind_of(returned.bytes);
    auto& budget = limits.budget(kind);
    auto& share = shares_[kind];
    block* evicted = nullptr;
    if (!bind(limits, cache, timeline)) [[unlikely]] {
      evicted = evict_stale(limits, cache, false);
    } else if (!budget.charge(share, returned.bytes)) {
      evicted = evict_stale(limits, storage.stream_caches[refused_ % stream_cache_count],
                            budget.unclaimed() < static_cast<std::int64_t>(returned.bytes));
    } else if (cache.event_due(timeline, returned.bytes, limits.threshold())) [[unlikely]] {
      share.uncharge(returned.bytes);
      return result{false, nullptr};
    } else {
      count_cached(returned, use);
      cache.push(returned);
      cache.last_insert = refused_;
      return result{true, nullptr};
    }
    if (evicted || kind == size_class::small) return result{false, evicted};
    return {};
  }
  [[gnu::always_inline]] inline result insert_large(cache_limits& limits, large_cache& large_blocks,
                                                    stream_cache& cache, block& returned,
                                                    stream_use const& use) noexcept GPUMEM_REQUIRES(mutex) {
    auto& timeline = *use.timeline;
    auto const bytes = returned.bytes;
    bool const keeps = bytes <= limits.largest_block() && large_blocks.enabled();
    if (!keeps && large_blocks.empty()) return {false, nullptr};
    // Evicts a block even if the freed one is not cached: both may coalesce to a larger range. Without this, the used
    // part of the reserved memory fell by .01 and .05 in two of four recorded traces.
    if (!keeps) return {false, evict_large(large_blocks)};
    bool const bound = bind(limits, cache, timeline);
    if (!bound && !limits.serves(timeline.device())) [[unlikely]]
      return {false, nullptr};
    if (bound ? cache.event_due(timeline, bytes, limits.threshold())
              : stream_cache::event_due_unbound(timeline, bytes, limits.threshold())) [[unlikely]]
      return {false, nullptr};
    auto& budget = limits.budget(size_class::large);
    auto& share = shares_[size_class::large];
    bool paid = !large_blocks.full() && budget.charge(share, bytes);
    auto* const evicted = paid ? nullptr : evict_large(large_blocks);
    paid = paid || budget.charge(share, bytes);
    if (!paid) [[unlikely]] {
      if (budget.unclaimed() < static_cast<std::int64_t>(bytes)) count_budget_miss(limits);
      return {false, evicted};
    }
    count_cached(returned, use);
    large_blocks.insert(returned);
    return {true, evicted};
  }
  // Gives the stream cache to the stream if it is empty and the stream's device may use the pool's memory. Returns
  // whether it belongs to the stream now.
  static inline bool bind(cache_limits const& limits, stream_cache& cache, stream_timeline& timeline) noexcept {
    return cache.timeline == &timeline ||
           (limits.serves(timeline.device()) && cache.bind_if_empty(timeline, limits.threshold()));
  }
  inline void count_budget_miss(cache_limits& limits) noexcept GPUMEM_REQUIRES(mutex) {
    ++budget_misses_;
    if (budget_misses_ < max_budget_misses) [[likely]]
      return;
    limits.note_exhausted();
  }
  [[gnu::always_inline]] inline void count_cached(block& returned, stream_use const& use) noexcept
      GPUMEM_REQUIRES(mutex) {
    returned.uses.assign(use);
    returned.set_state(block_state::cached);
    ++frees_;
    cached_requested_ += static_cast<std::int64_t>(returned.requested);
  }

  block& pop_largest(stream_cache& cache) noexcept GPUMEM_REQUIRES(mutex);
  block* evict_large(large_cache& large_blocks) noexcept GPUMEM_REQUIRES(mutex);
  // A slow path. With preserve_most it saves the registers that it changes, so that its inlined callers need not.
  [[clang::preserve_most, gnu::visibility("hidden")]] block* evict_stale(cache_limits& limits, stream_cache& cache,
                                                                         bool exhausted) noexcept
      GPUMEM_REQUIRES(mutex);

  std::uint32_t budget_misses_ GPUMEM_GUARDED_BY(mutex) = 0; // frees since the last flush for which no budget was left
  relaxed_atomic<std::int64_t> cached_requested_;
  relaxed_atomic<std::uint64_t> allocations_, frees_, refused_;
  std::array<cache_budget::share, size_class::kinds> shares_;
  std::atomic<cache_storage*> storage_{nullptr}; // *owned_storage_, for threads that read it without a lock
  std::unique_ptr<cache_storage> owned_storage_;
};

/// The thread caches of a pool by thread index, and the limits that they share. Calls that change the caches of other
/// threads need the locks of all shards.
///
/// Each cache has a mutex that is biased to its thread: that thread locks it cheaply. Threads with high indices share
/// caches, whose mutexes have no bias. A cache checks `enabled()` under its mutex. So a flush after `set_limits(false)`
/// finds every block that was inserted before, and none is inserted afterwards.
export class thread_caches {
public:
  thread_caches() noexcept;
  thread_caches(thread_caches const&) = delete;
  thread_caches& operator=(thread_caches const&) = delete;

  /// Allocates the storage of the calling thread's cache, if that has none. The caller holds the locks of all shards.
  /// `thread`: the index of the calling thread. Throws std::bad_alloc.
  GPUMEM_REQUIRES(all_shards) inline void ensure_storage(unsigned thread) {
    if (!has_storage(thread)) cache_of(thread).allocate_storage();
  }
  inline bool has_storage(unsigned thread) const noexcept { return cache_of(thread).has_storage(); }

  /// Allocates a cached block of this size or a little more to the stream; null if there is none. Any thread; `thread`
  /// is its index.
  [[gnu::always_inline]] inline block* pop(stream_timeline& timeline, size_class const& size, std::size_t requested,
                                           unsigned thread) noexcept {
    return cache_of(thread).pop(limits_, timeline, size, requested);
  }
  /// Caches a block that is being freed. `use`: its last use, on its own stream. Any thread; `thread` is its index.
  [[gnu::always_inline]] inline thread_cache::result insert(block& returned, stream_use const& use,
                                                            unsigned thread) noexcept {
    return cache_of(thread).insert(limits_, returned, use);
  }
  /// Calls the function under the mutex of the calling thread's cache. Returns false, and calls nothing, if caching is
  /// off. A flush after `set_limits(false)` waits until no such call is running.
  template <class Function> inline bool call_if_enabled(Function function) noexcept {
    sync::biased_lock const held{cache_of(sync::thread_index()).mutex};
    if (!enabled()) return false;
    function();
    return true;
  }

  /// Sets whether blocks are cached, and for each kind of size (small, medium, large) the bytes that all caches
  /// together may hold. `threads`: the number of threads that share these budgets. `threshold`: when a stream
  /// records an event. The caller holds the locks of all shards.
  GPUMEM_REQUIRES(all_shards)
  inline void set_limits(bool enabled, std::array<std::size_t, size_class::kinds> const& limits, std::size_t threads,
                         event_threshold threshold) noexcept {
    limits_.set(enabled, limits, threads, threshold);
  }
  inline bool enabled() const noexcept { return limits_.enabled(); }
  /// Passes these calls on to cache_limits. Any thread.
  inline bool serves(int device) const noexcept { return limits_.serves(device); }
  inline void set_devices(std::uint64_t devices) noexcept { limits_.set_devices(devices); }
  inline void add_devices(std::uint64_t devices) noexcept { limits_.add_devices(devices); }
  inline event_threshold threshold() const noexcept { return limits_.threshold(); }
  /// Returns whether each budget is the sum of the bytes that caches have claimed (in `sum`) and the bytes that no
  /// cache has claimed. Called in `visit_locked`.
  inline bool is_balanced(cache_counts const& sum) const noexcept { return limits_.is_balanced(sum.usage); }
  /// Returns whether one cache could not keep `max_budget_misses` freed blocks since the last flush, because the budget
  /// was used up. Then other caches use the budget for blocks that no request asks for.
  inline bool budget_exhausted() const noexcept { return limits_.exhausted(); }
  /// Removes the blocks of all caches and returns them, linked by `next`. The caller holds the locks of all shards.
  GPUMEM_REQUIRES(all_shards) block* flush() noexcept;

  /// Returns the requested bytes of the blocks in this thread's cache. The shards count these bytes as live.
  inline std::int64_t cached_requested_of(unsigned thread) const noexcept {
    return cache_of(thread).cached_requested();
  }
  /// Returns the sums of the counts of all caches, while other threads may change the counts. Any thread.
  cache_counts snapshot() const noexcept;
  /// Calls `visitor(number, counts)` for each cache that has held blocks, while other threads may change the counts.
  /// `number`: the index of its thread, or a larger number if several threads share the cache. Any thread.
  template <class Visit> void visit(Visit visitor) const {
    for (unsigned number = 0; number < caches_.size(); ++number) {
      cache_counts counts;
      caches_[number].add_to(counts);
      if (caches_[number].has_storage()) visitor(number, counts);
    }
  }
  /// Calls `visitor(counts)` with the sums while no cache changes. The caller holds the locks of all shards.
  template <class Visit> GPUMEM_REQUIRES(all_shards) void visit_locked(Visit visitor) {
    with_all_locked([&] { visitor(snapshot()); });
  }

private:
  static constexpr unsigned biased_caches = sync::max_biased_threads;
  static constexpr unsigned shared_caches = biased_caches / 4;

  static inline unsigned cache_index(unsigned number) noexcept {
    return number < biased_caches ? number : biased_caches + number % shared_caches;
  }
  inline thread_cache& cache_of(unsigned number) noexcept { return caches_[cache_index(number)]; }
  inline thread_cache const& cache_of(unsigned number) const noexcept { return caches_[cache_index(number)]; }

  // Calls the function with the mutexes of all caches locked. clang's analysis cannot follow mutexes that a loop locks.
  template <class Function> GPUMEM_NO_LOCK_ANALYSIS void with_all_locked(Function function) noexcept {
    for (auto& each : caches_) each.mutex.request_revoke();
    sync::biased_mutex::fence_owner_threads();
    for (auto& each : caches_) each.mutex.lock_revoked();
    function();
    for (auto& each : caches_) each.mutex.unlock_revoked();
  }

  std::array<thread_cache, biased_caches + shared_caches> caches_;
  cache_limits limits_;
};

} // namespace gpumem::detail
