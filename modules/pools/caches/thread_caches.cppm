// The thread caches of a pool: recently freed blocks, kept for the thread that freed them.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:thread_caches;
import :block;
import :cache_limits;
import :shard_roles;
import :std;
import :stream_timeline;
import :sync;
import :thread_cache;

namespace gpumem::detail {

/// The thread caches of a pool by thread index, and the limits that they share. A shard is a part of the pool with a
/// lock of its own; calls that change the caches of other threads need the locks of all shards.
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
  [[clang::requires_capability(all_shards)]] inline void ensure_storage(unsigned thread) {
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
  [[gnu::always_inline]] inline thread_cache::result insert(block& freed, stream_use const& use,
                                                            unsigned thread) noexcept {
    return cache_of(thread).insert(limits_, freed, use);
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
  /// together may hold. `threads`: the number of threads that share these budgets. `event_threshold_bytes`: the freed
  /// bytes after which a stream records an event. The caller holds the locks of all shards.
  [[clang::requires_capability(all_shards)]] inline void
  set_limits(bool on, std::array<std::size_t, size_class::kinds> const& limits, std::size_t threads,
             std::size_t event_threshold_bytes) noexcept {
    limits_.set(on, limits, threads, event_threshold_bytes);
  }
  inline bool enabled() const noexcept { return limits_.enabled(); }
  /// Passes these calls on to cache_limits. Any thread.
  inline bool serves(int device) const noexcept { return limits_.serves(device); }
  inline void set_devices(std::uint64_t all) noexcept { limits_.set_devices(all); }
  inline void add_devices(std::uint64_t some) noexcept { limits_.add_devices(some); }
  inline std::size_t event_threshold_bytes() const noexcept { return limits_.event_threshold_bytes(); }
  /// Returns whether each budget is the sum of the bytes that caches have claimed (in `sum`) and the bytes that no
  /// cache has claimed. Called in `visit_locked`.
  inline bool is_balanced(cache_counts const& sum) const noexcept { return limits_.is_balanced(sum.usage); }
  /// Returns whether one cache could not keep `max_budget_misses` freed blocks since the last flush, because the budget
  /// was used up. Then other caches use the budget for blocks that no request asks for.
  inline bool budget_exhausted() const noexcept { return limits_.exhausted(); }
  /// Removes the blocks of all caches and returns them, linked by `next`. The caller holds the locks of all shards.
  [[clang::requires_capability(all_shards)]] block* flush() noexcept;

  /// Returns the requested bytes of the blocks in this thread's cache. The shards count these bytes as live.
  inline std::int64_t cached_requested_of(unsigned thread) const noexcept {
    return cache_of(thread).cached_requested();
  }
  /// Returns the sums of the counts of all caches, while other threads may change the counts. Any thread.
  cache_counts snapshot() const noexcept;
  /// Calls `visitor(counts)` with the sums while no cache changes. The caller holds the locks of all shards.
  template <class Visit> [[clang::requires_capability(all_shards)]] void visit_locked(Visit visitor) {
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
  template <class Function> [[clang::no_thread_safety_analysis]] void with_all_locked(Function function) noexcept {
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
