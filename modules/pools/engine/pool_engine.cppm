// What the handles of one pool share: blocks, chunks, their order, and the way from a request to memory.
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

/// What became of a free: a misuse was reported and nothing happened; it was done; it was done, of the last live block
/// of a pool without handles, which is now the caller's to close.
enum class free_result : std::uint8_t { refused, done, last };

/// Allocations and frees that a thread cache serves take the lock of that cache; those that the thread's shard serves
/// take that shard's, and all others those of all shards. Under locks driver calls on streams are made, but no calls
/// upstream, waits or synchronisation. Nothing in a free allocates host memory. Disposes of itself after close().
export class pool_engine final : private deferred_release,
                                 private pool_backend::observer,
                                 private request_queue::owner {
public:
  /// Throws what upstream's failure throws, std::invalid_argument, std::bad_alloc.
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
  /// What became of a free near the calling thread.
  struct cached_free {
    stream_use use; ///< that ends
    thread_caches::result result;
    shard_list::lookup freed; ///< if it lies in the thread's own shard
    inline bool done() const noexcept { return result.inserted && !result.evicted; }
  };
  /// Keeps what is freed near the calling thread, if it may be; without `bytes` any size is right. What is left to do
  /// `free_slow` does.
  [[gnu::always_inline]] inline cached_free try_cache(stream_key const& key, void* pointer,
                                                      std::optional<std::size_t> bytes) noexcept {
    auto const thread = sync::thread_index();
    auto& shard = parts_.shards.shard_of(thread);
    auto* const freed = shard.find_live(pointer);
    bool const may = freed && may_cache(*freed, key, bytes);
    // The epoch is read after all that the caller has enqueued, and before anything becomes of the block.
    stream_use const use{&key.timeline(), end_use(key, freed, bytes)};
    if (!may) [[unlikely]]
      return {use, {false, nullptr}, {freed, &shard}};
    return {use, parts_.caches.insert(*freed, use, thread), {freed, &shard}};
  }
  /// `cached`: what `try_cache` has done for the same call.
  free_result free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                        cached_free const& cached) noexcept;
  /// Both.
  inline free_result deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
    return free_slow(key, pointer, bytes, try_cache(key, pointer, bytes));
  }
  /// False: a misuse was reported. Throws cuda_error, std::bad_alloc.
  bool record_use(stream_key const& key, void* pointer);
  /// The uses on other streams recorded so far of a live block.
  stream_uses uses_of(void const* pointer) noexcept;
  /// Time grows with the blocks of a chunk.
  std::optional<block_info> find(void const* pointer);
  std::size_t trim(std::size_t keep);
  /// Throws what upstream's failure throws, std::bad_alloc.
  std::size_t reserve(std::size_t bytes);
  /// Throws std::invalid_argument.
  void set_limit(std::size_t bytes);
  /// Keeps the pages in which the bytes lie where they are, until as many calls of unpin; false: they are not all the
  /// pool's.
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  /// As virtual_pages::export_page; invalid_argument of what is not in a page of the pool.
  expected<int, failure> export_page(void const* pointer);
  /// False: not all of what keeps free memory from going was seen complete. Throws std::bad_alloc.
  bool synchronize(sync::duration longest);
  statistics read_statistics();
  pool_counters read_counters();
  /// Whether every byte is in exactly one place: granted + cached + free = reserved, no overlap, free lists and
  /// neighbours agree, and what is cached is within the budget.
  bool is_consistent();

  /// None over upstreams without one.
  inline std::optional<device> where() const noexcept { return parts_.backend.where(); }
  inline pool_options const& options() const noexcept { return parts_.options; }
  inline pool_upstream& upstream() noexcept { return parts_.backend.upstream(); }
  inline bool lost() const noexcept { return parts_.backend.lost(); }

  /// The requests that wait.
  inline request_queue& requests() noexcept { return requests_; }
  /// Takes back a part of a request of which another part was refused: see request_queue.
  void return_part(stream_key const& key, void* pointer) noexcept;
  /// From now on requests are refused with outcome::closed, and those that wait are answered with it.
  void refuse_requests() noexcept;

  /// No handle is left; true if no live block and no request is either. Else the last one's end tells.
  bool drop_last_handle() noexcept;
  /// No handle and no live block is left. Gives everything upstream; what the host has not seen complete, by the
  /// library thread. The engine may be gone when this returns.
  void close() noexcept;

private:
  bool is_consistent_with(cache_counts const& cached);
  static void add_free_statistics(pool_shard& in, statistics& f, std::vector<stream_timeline const*>& users);

  // pool_allocate.cpp: from a request to memory.
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

  // pool_out_of_memory.cpp: out of memory, the last resort.
  void* sync_and_retry(allocation_request const& request, all_shards_lock& held);
  void* search_after_sync(allocation_request const& request);
  bool sync_could_help(allocation_request const& request);

  // For the requests that wait.
  void refuse_requests(woken_waiters& woken) noexcept;
  void on_first_waiter() noexcept override;
  bool has_deferred_frees() const noexcept override { return deferred_ != nullptr; }
  void run_deferred_frees() noexcept override { run_deferred_frees(nullptr); }
  // Nobody is left whose end would be told.
  inline bool is_unused() const noexcept override {
    return no_handles_ && parts_.live_blocks() == 0 && requests_.empty();
  }

  // pool_free.cpp: from live to free, and the events that is left of it.
  // Of a block that is the caller's, nothing changes behind his back.
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
  // One free on its way.
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
  // Whether a block that is freed stays apart, for the next who may have it as it is.
  inline bool goes_to_quick_list(block const& freed) const noexcept {
    auto const max_streams = parts_.rules.host_accessible() ? 0u : 1u; // the host waits for all of them
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

  // pool_mode.cpp: what threads may keep.
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
  // Whether frees leave events for other streams. For moves a request records one itself.
  inline bool records_events() const noexcept { return multi_stream_; }
  // Of a stream's frees, bytes: while there is memory few ask for events of them; near the limit all do.
  inline std::size_t event_threshold_bytes() const noexcept {
    return std::max(parts_.backend.chunks().reserved() / (parts_.backend.chunks().near_limit() ? 256 : 2), granule);
  }
  // Giving back begins an eighth beyond the threshold, and ends there.
  inline bool too_much_reserved() const noexcept {
    auto const slack = parts_.options.release_threshold / 8;
    return parts_.backend.chunks().reserved() > slack &&
           parts_.backend.chunks().reserved() - slack > parts_.options.release_threshold;
  }

  // pool_release.cpp: what goes back.
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
  std::atomic<bool> near_limit_{false}; // little is left of the limit: see chunk_list
  // Each free on a stream that may die records an event: memory is wanted back, or near its limit.
  std::atomic<bool> frees_record_{false};
  sync::spin_condition evictions_done_; // what was evicted

  // What follows changes only under the locks of all shards.
  range_search const search_;
  peak_tracker live_;
  stream_timeline const* first_stream_ = nullptr;
  block* deferred_ = nullptr;
  bool multi_stream_ = false; // streams have been served
  bool fast_path_ = false;    // nothing calls for the locks of all: no pressure, nothing deferred, nothing to give back
  bool under_pressure_ = false; // since a request failed all tiers before waiting
  bool pass_queued_ = false;
  bool posted_late_ = false; // that pass may be replaced by an earlier one
  bool pass_running_ = false;
  bool no_handles_ = false;
  unsigned eviction_waiters_ = 0; // who would fail, and waits for blocks that thread caches have evicted
  unsigned idle_passes_ = 0;      // of the library thread, since the last free that called for one
};

/// Polls, until `longest` has passed, until all that was freed on the streams so far is complete. False if that was not
/// seen by then, or, once the rest is complete, if no event covers all of it. Records events on streams whose handles
/// may be touched. No lock may be held.
export bool wait_for_streams(std::vector<stream_timeline*> const& timelines, sync::duration longest) noexcept;

} // namespace gpumem::detail
