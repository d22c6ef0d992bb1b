// The engine of one pool: allocation, free, background release and statistics over the parts of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <string>
export module gpumem:pool_engine;
import :allocation_request;
import :block;
import :block_info;
import :deferred_release;
import :device;
import :error;
import :peak_tracker;
import :pool_backend;
import :pool_counters;
import :pool_options;
import :pool_parts;
import :pool_shard;
import :pool_upstream;
import :range_allocator;
import :range_search;
import :request_queue;
import :shard_list;
import :size_class;
import :std;
import :stream;
import :stream_timeline;
import :stream_uses;
import :sync;
import :thread_caches;
import :waiter;

namespace gpumem::detail {

/// The result of a free.
enum class free_result : std::uint8_t {
  refused, ///< a misuse was reported, and nothing was freed
  done,
  last, ///< it freed the last live block of a pool without handles, which the caller now closes
};

/// An allocation or a free takes the lock of the thread's cache, if that serves it. Otherwise it takes the lock of the
/// thread's shard, and after that the locks of all shards. Under a lock the engine makes driver calls on streams, but
/// neither calls its upstream nor waits. A free allocates no host memory. The engine deletes itself after close().
export class pool_engine final : private deferred_release,
                                 private pool_backend::observer,
                                 private request_queue::owner {
public:
  /// Throws what `throw_failure` throws for the failure of the upstream, std::invalid_argument, std::bad_alloc.
  pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options);

  [[gnu::always_inline]] inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                                                      std::size_t alignment) noexcept {
    auto const size = size_class::of(bytes, largest_numbered_.load(std::memory_order_relaxed));
    auto const thread = sync::thread_index();
    if (alignment <= granule && !key.is_host()) [[likely]] {
      if (auto* const cached = parts_.caches.pop(key.timeline(), size, bytes, thread)) return cached->pointer();
    }
    return allocate_slow(key, size, bytes, alignment);
  }
  /// The result of a free into the calling thread's cache.
  struct cached_free {
    stream_use use; ///< the use that ends
    thread_caches::result result;
    shard_list::lookup freed; ///< if it lies in the thread's own shard
    inline bool done() const noexcept { return result.inserted && !result.evicted; }
  };
  /// Puts a block into the calling thread's cache, if the cache may hold it; without `bytes` any size is right.
  /// `free_slow` does the rest.
  [[gnu::always_inline]] inline cached_free try_cache(stream_key const& key, void* pointer,
                                                      std::optional<std::size_t> bytes) noexcept {
    auto const thread = sync::thread_index();
    auto& shard = parts_.shards.shard_of(thread);
    auto* const freed = shard.find_live(pointer);
    bool const may = freed && may_cache(*freed, key, bytes);
    // The epoch is read after all work that the caller has enqueued, and before the block changes.
    stream_use const use{&key.timeline(), end_use(key, freed, bytes)};
    if (!may) [[unlikely]]
      return {use, {false, nullptr}, {freed, &shard}};
    return {use, parts_.caches.insert(*freed, use, thread), {freed, &shard}};
  }
  /// `cached`: the result of `try_cache` for the same call.
  free_result free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                        cached_free const& cached) noexcept;
  /// Calls try_cache() and free_slow().
  inline free_result deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
    return free_slow(key, pointer, bytes, try_cache(key, pointer, bytes));
  }
  /// Returns false after it has reported a misuse. Throws cuda_error, std::bad_alloc.
  bool record_use(stream_key const& key, void* pointer);
  /// Returns the uses on other streams that were recorded for a live block.
  stream_uses uses_of(void const* pointer) noexcept;
  /// Takes time in proportion to the number of blocks in the chunk.
  std::optional<block_info> find(void const* pointer);
  std::size_t trim(std::size_t keep);
  /// Throws what `throw_failure` throws for the failure of the upstream, std::bad_alloc.
  std::size_t reserve(std::size_t bytes);
  /// Throws std::invalid_argument.
  void set_limit(std::size_t bytes);
  /// Keeps the pages of these bytes in place until unpin() was called as often as pin(). Returns false if a byte is not
  /// the pool's.
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  /// As virtual_pages::export_page; outcome::invalid_argument for a pointer outside the pages of the pool.
  expected<int, failure> export_page(void const* pointer);
  /// Waits until all work is complete that keeps free memory in the pool. Returns false if some was not seen complete.
  /// Throws std::bad_alloc.
  bool synchronize(sync::duration longest);
  statistics read_statistics();
  pool_counters read_counters();
  /// Whether each byte is in exactly one place: live + cached + free = reserved, no overlap, free lists and neighbours
  /// agree, and the cached bytes are within the budget.
  bool is_consistent();

  /// Returns the device; none over an upstream without a device.
  inline std::optional<device> where() const noexcept { return parts_.backend.where(); }
  inline pool_options const& options() const noexcept { return parts_.options; }
  inline pool_upstream& upstream() noexcept { return parts_.backend.upstream(); }
  inline bool lost() const noexcept { return parts_.backend.lost(); }

  /// The requests that wait.
  inline request_queue& requests() noexcept { return requests_; }
  /// Frees a part of a request of which another part was refused: see request_queue::return_part.
  void return_part(stream_key const& key, void* pointer) noexcept;
  /// Refuses all further requests with outcome::closed, and answers the waiting ones with it.
  void refuse_requests() noexcept;

  /// Notes that no handle is left. Returns true if there is no live block and no request either. Otherwise the end of
  /// the last one returns free_result::last or waiting::last.
  bool drop_last_handle() noexcept;
  /// Called when no handle and no live block is left. Returns all memory to the upstream; the library thread returns
  /// memory whose uses the host has not seen complete. The engine may be gone when this returns.
  void close() noexcept;

private:
  bool is_consistent_with(cache_counts const& cached);
  static void add_free_statistics(pool_shard& in, statistics& f, std::vector<stream_timeline const*>& users);

  // pool_allocate.cpp: allocation.
  expected<void*, failure> allocate_slow(stream_key const& key, size_class size, std::size_t bytes,
                                         std::size_t alignment) noexcept;
  expected<void*, failure> allocate_from_all_shards(allocation_request& request);
  expected<void*, failure> fail(allocation_request const& request, outcome why) noexcept;
  void* allocate_from_shard(allocation_request& request);
  void* search_all_shards(allocation_request const& request);
  void* search_own_shard(allocation_request const& request);
  void wait_for_evictions(all_shards_lock& held);
  expected<void*, failure> grow(allocation_request const& request, all_shards_lock& held, bool exact);
  expected<void*, failure> grow_in_place(allocation_request const& request, all_shards_lock& held);
  void* commit(allocation_request const& request, placement place);
  block& split_off(allocation_request const& request, placement place);
  static void count_steal(pool_shard& by) noexcept;
  [[gnu::always_inline]] inline void count_live(pool_shard& in, std::int64_t change, std::int64_t nearby) noexcept {
    if (!parts_.shards.single()) return count_live_of_many(in, change, nearby);
    live_.count_alone(in.live, change, nearby);
  }
  void count_live_of_many(pool_shard& in, std::int64_t change, std::int64_t nearby) noexcept;

  // pool_out_of_memory.cpp: the host waits for memory that streams still use.
  void* sync_and_retry(allocation_request const& request, all_shards_lock& held);
  void* search_after_sync(allocation_request const& request);
  bool sync_could_help(allocation_request const& request);

  // Called by the request queue.
  void refuse_requests(woken_waiters& woken) noexcept;
  void on_first_waiter() noexcept override;
  bool has_deferred_frees() const noexcept override { return deferred_ != nullptr; }
  void run_deferred_frees() noexcept override { run_deferred_frees(nullptr); }
  // Whether neither handle, nor live block, nor request is left.
  inline bool is_unused() const noexcept override {
    return no_handles_ && parts_.live_blocks() == 0 && requests_.empty();
  }

  // pool_free.cpp: frees, and the events that they record.
  // Whether the thread's cache may hold the block. No other thread changes a live block, so no lock is needed.
  static inline bool may_cache(block const& freed, stream_key const& key, std::optional<std::size_t> bytes) noexcept {
    return freed.is_live() && (!bytes || *bytes == freed.requested) && freed.uses.empty() && !key.is_host() &&
           !key.capturing();
  }
  // Whether a call may be served under the lock of one shard.
  inline bool may_use_one_lock(stream_timeline const& timeline) const noexcept {
    return fast_path_ && (multi_stream_ || first_stream_ == &timeline);
  }
  // The epoch of a use that ends on the stream. A free whose size is not known counts as a large one.
  [[gnu::always_inline]] inline epoch end_use(stream_key const& key, block const* freed,
                                              std::optional<std::size_t> bytes) const noexcept {
    if (!key.timeline().is_mortal()) [[likely]]
      return key.timeline().current_epoch();
    return key.end_use(freed ? freed->bytes : bytes.value_or(~std::size_t{0} / 2),
                       frees_record_.load(std::memory_order_relaxed));
  }
  // The arguments of one free.
  struct free_call {
    stream_key const& key;
    void* pointer;
    std::optional<std::size_t> bytes;
    stream_use use;
    inline bool fits(block const& freed) const noexcept { return !bytes || *bytes == freed.requested; }
  };
  free_result free_uncached(free_call const& call, shard_list::lookup const& seen) noexcept;
  bool free_to_shard(free_call const& call, shard_list::lookup const& seen) noexcept;
  bool push_remote_free(free_call const& call, shard_list::lookup const& seen) noexcept;
  inline void drain_remote_frees(pool_shard& in) noexcept {
    if (in.remote_frees.load(std::memory_order_relaxed)) drain_remote_frees_slow(in);
  }
  void drain_remote_frees_slow(pool_shard& in) noexcept;
  inline void drain_all_remote_frees() noexcept {
    for (auto const& each : parts_.shards.all()) drain_remote_frees(*each);
  }
  free_result free_with_all_locks(free_call const& call) noexcept;
  free_result free_evicted_block(block& cached) noexcept;
  block* checked_block(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  block* explain_misuse(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  void finish_free(block& freed, free_call const& call, pool_shard& in) noexcept;
  stream_use record_event_if_due(free_call const& call, std::size_t bytes, pool_shard& in) noexcept;
  bool passes_event_threshold(stream_timeline& timeline, std::size_t bytes, pool_shard& in) noexcept;
  stream_use record_event(free_call const& call) noexcept;
  // Whether a freed block goes to a quick list instead of being coalesced.
  inline bool goes_to_quick_list(block const& freed) const noexcept {
    auto const max_streams = parts_.rules.host_accessible() ? 0u : 1u; // the host has to wait for all streams
    return freed.bytes <= size_class::largest_small && fast_path_ && freed.uses.size() <= max_streams;
  }
  range_allocator::coalescing coalescing_of(block const& freed) const noexcept;
  void free_block(block& freed) noexcept;
  void free_cached_block(block& cached) noexcept;
  inline void check_thresholds(block const& range) noexcept {
    if (!fast_path_) [[unlikely]]
      check_thresholds_slow(range);
  }
  void check_thresholds_slow(block const& range) noexcept;
  void defer_free(block& freed, stream_key const& key) noexcept;
  void run_deferred_frees(stream_key const* now) noexcept;

  // pool_uses.cpp: recorded uses.
  void admit_use(stream_uses& uses, stream_key const& key, all_shards_lock& held);

  // pool_mode.cpp: whether thread caches are on, and their limits.
  bool flush_thread_caches() noexcept;
  void flush_beyond_threshold() noexcept;
  void set_under_pressure(bool on) noexcept;
  void update_mode() noexcept;
  void on_reserved_changed() noexcept override { update_mode(); }
  inline void add_stream(stream_timeline const& timeline) noexcept {
    if (!first_stream_) first_stream_ = &timeline;
    if (!multi_stream_ && first_stream_ != &timeline) enable_cross_stream();
  }
  void enable_cross_stream() noexcept;
  // Whether frees record events for other streams. A request that moves pages records one itself.
  inline bool records_events() const noexcept { return multi_stream_; }
  // After this many freed bytes of a stream a free records an event: half of the reserved bytes, near the limit 1/256.
  inline std::size_t event_threshold_bytes() const noexcept {
    return std::max(parts_.backend.chunks().reserved() / (parts_.backend.chunks().near_limit() ? 256 : 2), granule);
  }
  // Background release begins an eighth beyond the threshold, and ends at the threshold.
  inline bool too_much_reserved() const noexcept {
    auto const slack = parts_.options.release_threshold / 8;
    return parts_.backend.chunks().reserved() > slack &&
           parts_.backend.chunks().reserved() - slack > parts_.options.release_threshold;
  }

  // pool_release.cpp: memory that goes back to the upstream.
  void expire() noexcept override;
  bool release_pass(all_shards_lock& held) noexcept;
  void schedule_pass() noexcept override;
  void post_late_pass(sync::time_point when) noexcept override;
  bool may_post(bool soon) noexcept;
  std::vector<stream_timeline*> streams_without_event() override;

  pool_parts parts_;
  request_queue requests_;
  // The pool rounds sizes up to this one. Larger sizes are exact: rounding them wasted .01 to .02 of recorded traces.
  // Where threads have shards it rounds up to 1 MiB, since a thread stops the others for a block that it lacks.
  static constexpr std::size_t default_largest_numbered = std::size_t{256} << 10;
  std::atomic<std::size_t> largest_numbered_{default_largest_numbered};
  std::atomic<bool> near_limit_{false}; // see chunk_list::near_limit
  // Each free on a stream that may be destroyed records an event: under memory pressure, or near the limit.
  std::atomic<bool> frees_record_{false};
  sync::spin_condition evictions_done_; // evicted blocks have reached a free list

  // These members change only under the locks of all shards.
  range_search const search_;
  peak_tracker live_;
  stream_timeline const* first_stream_ = nullptr;
  block* deferred_ = nullptr;
  bool multi_stream_ = false; // more than one stream has used the pool
  bool fast_path_ = false;    // nothing calls for the locks of all: no pressure, nothing deferred, nothing to give back
  bool under_pressure_ = false; // since a request found no memory without a wait
  bool pass_queued_ = false;
  bool posted_late_ = false; // an earlier pass may replace the posted one
  bool pass_running_ = false;
  bool no_handles_ = false;
  unsigned eviction_waiters_ = 0; // requests that wait for evicted blocks before they fail
  unsigned idle_passes_ = 0;      // passes of the library thread since the last free that scheduled one
};

/// Polls until all uses of memory that was freed on the streams so far are complete, at most for `longest`. Returns
/// false if the time has passed, or if no event covers some of these uses. Records events on streams whose handles may
/// be used. The caller holds no lock.
export bool wait_for_streams(std::vector<stream_timeline*> const& timelines, sync::duration longest) noexcept;

} // namespace gpumem::detail
