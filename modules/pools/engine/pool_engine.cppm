// The engine of one pool: its parts, the classes that allocate and free blocks in them, and calls about its pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <string>
export module gpumem:pool_engine;
import :allocate_path;
import :block;
import :device;
import :error;
import :free_path;
import :frees;
import :holders;
import :memory_walk;
import :memory_watcher;
import :page_store;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_reports;
import :pool_shard;
import :pool_upstream;
import :range_search;
import :release_task;
import :request_queue;
import :shard_list;
import :shard_roles;
import :std;
import :stream;
import :sync;
import :thread_caches;
import :waiter;

namespace gpumem::detail {

/// Allocates and frees the blocks of one pool, which has one or more shards with a lock each. If the thread's cache of
/// freed blocks serves a call, the call takes only the lock of that cache. Otherwise it takes the lock of one shard,
/// and then, if that is not enough, the locks of all shards. Under a lock the engine makes driver calls on streams, but
/// neither calls its upstream nor waits. The engine deletes itself after close().
export class pool_engine final : private release_task::owner {
public:
  /// Throws std::invalid_argument for wrong options, std::bad_alloc, and the exception of `throw_failure` for a failure
  /// of the upstream.
  pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options);

  [[gnu::always_inline]] inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                                                      std::size_t alignment) noexcept {
    auto const size = size_class::of(std::max(bytes, parts_.smallest_block), parts_.mode.largest_numbered());
    auto const thread = sync::thread_index();
    if (alignment <= granule && !key.identity().is_host()) [[likely]] {
      if (auto* const cached = parts_.caches.pop(key.identity().timeline(), size, bytes, thread))
        return cached->pointer();
    }
    return allocate_path_.allocate(key, size, bytes, alignment);
  }
  /// Lends pages; see allocate_path.
  inline expected<void*, failure> lend(stream_key const& key, loan_terms const& terms, std::size_t bytes) noexcept {
    return allocate_path_.lend(key, terms, bytes);
  }
  /// Divides a live block into two, of which the lower one has `bytes`. The caller owns it. Throws std::bad_alloc.
  void divide(void* pointer, std::size_t bytes);
  /// Returns the calling thread's shard, and the block in it that starts at the address; null if there is none.
  inline shard_list::lookup find_in_own_shard(void const* pointer) noexcept {
    auto& shard = parts_.shards.shard_of_thread();
    return {shard.find_live(pointer), &shard};
  }
  /// Puts a block into the calling thread's cache, if the cache may hold it. `lookup`: what find_in_own_shard()
  /// returned. `bytes`: the size that the caller states; nullopt if the size is not to be checked. Unless the result is
  /// done(), the caller then calls free_slow().
  [[gnu::always_inline]] inline cached_free try_cache(stream_key const& key, shard_list::lookup const& lookup,
                                                      std::optional<std::size_t> bytes) noexcept {
    bool const may = lookup.that && free_path::may_cache(*lookup.that, key, bytes);
    // Reads the stream's epoch now. The caller has enqueued all work on the block, and insert() stores the epoch in the
    // block.
    auto const use = free_path::end_use(parts_.mode, key, lookup.that, bytes);
    if (!may) [[unlikely]]
      return {use, {false, nullptr}, lookup};
    return {use, parts_.caches.insert(*lookup.that, use, sync::thread_index()), lookup};
  }
  /// Completes the free of a block for which try_cache() has returned `cached`.
  inline free_result free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                               cached_free const& cached) noexcept {
    return free_path_.free_slow(key, pointer, bytes, cached);
  }
  /// Frees a block: calls try_cache(), then free_slow().
  inline free_result deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
    return free_slow(key, pointer, bytes, try_cache(key, find_in_own_shard(pointer), bytes));
  }
  /// Returns the live block that starts at the address; nullopt if there is none. Takes no lock, so the caller must own
  /// the block: otherwise another thread could free it meanwhile.
  inline std::optional<owned_block> find_owned(void const* pointer) noexcept {
    auto const* const found = parts_.shards.find_live(pointer).that;
    if (!found || !found->is_live()) return std::nullopt;
    return owned_block{found->requested, found->stream};
  }
  /// Frees a block that a request for several blocks had got before another one was refused.
  void return_part(stream_key const& key, void* pointer) noexcept { free_path_.return_part(key, pointer); }

  /// Declare, and return, the uses of a block on other streams; see free_path.
  bool record_use(stream_key const& key, void* pointer) { return free_path_.record_use(key, pointer); }
  stream_uses recorded_uses(void const* pointer) noexcept { return free_path_.recorded_uses(pointer); }

  /// Return the objects that serve the requests that wait.
  inline request_queue& requests() noexcept { return queue_; }
  inline request_passes& passes() noexcept { return request_passes_; }
  inline shard_list& shards() noexcept { return parts_.shards; }
  inline pool_options const& options() const noexcept { return parts_.options; }
  inline pool_upstream& upstream() noexcept { return *parts_.upstream; }
  /// Returns the upstream's device; nullopt if the upstream has none.
  inline std::optional<device> where() const noexcept { return parts_.where; }
  inline bool lost() const noexcept { return parts_.lost(); }
  /// Returns whether work of the stream may use the pool's memory.
  inline bool serves(stream_key const& key) const noexcept { return parts_.serves(key); }
  inline void report_unopened(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
    free_path_.report_unopened(key, pointer, bytes);
  }
  /// Returns whether the pool refuses all requests.
  inline bool refuses() const noexcept { return parts_.requests.is_closed(); }
  /// Returns whether requests wait for memory.
  inline bool has_waiting() const noexcept { return parts_.requests.has_waiting(); }

  // Each of the next functions takes the locks of all shards; read_statistics() only if it must.
  /// Sums up the counts of the shards, the thread caches and the waiting requests.
  statistics read_statistics();
  pool_counters read_counters();
  /// Describes the block or the free range that holds the address; nullopt if the address is not in the pool. Takes
  /// time in proportion to the number of blocks in the same chunk.
  std::optional<block_info> find(void const* pointer);
  /// Counts the live blocks, and describes the largest. Takes time in proportion to the number of blocks. Throws
  /// std::bad_alloc.
  live_blocks find_live();
  /// Describes all reserved memory, in the order of addresses. Takes time in proportion to the number of blocks. Throws
  /// std::bad_alloc.
  std::vector<memory_range> memory_map();
  /// Names a live block of the caller; 0: takes its name away. Does nothing, and returns false, if no live block begins
  /// at the address.
  inline bool set_label(void const* pointer, std::uint32_t label) noexcept {
    auto* const named = parts_.shards.find_live(pointer).that;
    if (!named || !named->is_live()) return false;
    named->set_label(label);
    return true;
  }
  /// `piece`: the most blocks that are copied at one moment. Throws std::bad_alloc.
  memory_copy copy_memory(std::size_t piece = memory_walk::usual_piece) {
    return detail::copy_memory(parts_, frees_, requests_, read_statistics(), piece);
  }
  /// Calls detail::append_holders() with the pool's limit.
  void append_holders(std::span<copied_block const> blocks, std::size_t bytes, std::string& text) {
    detail::append_holders(blocks, parts_.chunks.limit(), bytes, text);
  }
  /// Returns a text about the pool's memory, for people. Throws std::bad_alloc.
  std::string describe_memory() { return detail::describe_memory(parts_, frees_); }
  /// Returns whether the records of the pool agree: each reserved byte is live, cached or free, and blocks do not
  /// overlap. The free lists hold exactly the free ranges, and the thread caches keep within their budget.
  bool is_consistent();

  /// Keeps the pages of these bytes mapped in place until unpin() was called as often as pin(). Returns false if a byte
  /// is not the pool's.
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  /// Lets another device read and write the pages of the pool. Does nothing if the pool has chunks. Throws cuda_error,
  /// std::bad_alloc.
  void open_to(device peer);
  /// Returns the page that holds the pointer, with a file descriptor by which another process can map it. Pins it.
  /// Fails with outcome::invalid_argument if the pool has no such page, or its pages are not exportable.
  expected<exported_page, failure> export_page(void const* pointer);

  std::size_t trim(std::size_t keep);
  /// Begins or ends to tell the watcher of the pool's pages or chunks. First tells it of those that the pool has.
  /// Throws std::bad_alloc.
  void watch_memory(memory_watcher& watcher, bool begin);
  /// Gives back all free memory whose uses are complete, as trim() does, and returns the bytes. Does nothing in a call
  /// from inside the upstream.
  std::size_t give_back() noexcept;
  /// Returns the reserved bytes.
  std::size_t reserved() noexcept;
  /// Gets memory from the upstream until `bytes` are reserved, and returns the bytes that it got. Throws
  /// std::bad_alloc, and the exception of `throw_failure` for a failure of the upstream.
  expected<std::size_t, failure> reserve(std::size_t bytes);
  /// Sets the most bytes that the pool may reserve; 0: no limit. Throws std::invalid_argument.
  void set_limit(std::size_t bytes);
  /// Counts `bytes` of another source toward the limit; gives unused memory back to make room for them. Returns false,
  /// and counts nothing, if the limit would be exceeded. Throws std::bad_alloc.
  bool add_outside(std::size_t bytes);
  void remove_outside(std::size_t bytes);
  /// Reserves addresses for a borrower of pages; see pool_backend. Throws std::invalid_argument if the pool has no
  /// pages, cuda_error and std::bad_alloc.
  address_range& open_range(std::size_t bytes);
  void close_range(address_range& range) noexcept;
  /// Sets the peaks in the statistics to the present values.
  void reset_peaks();
  /// Waits on the host until streams have completed their work on the pool's free memory. Returns false if that took
  /// more than `longest`, or if the device is lost. Throws std::bad_alloc.
  bool synchronize(sync::duration longest);

  /// Makes all further requests, and those that wait now, fail with outcome::closed.
  void refuse_requests() noexcept;
  /// Notes that the pool has no handle any more. Returns true if it has no live block and no request either: the caller
  /// then calls close(). Otherwise a later call that ends the last block or request returns free_result::last, and its
  /// caller calls close().
  bool drop_last_handle() noexcept;
  /// Gives all memory back to the upstream. Called when no handle, live block or request is left. The library thread
  /// later gives back memory that streams still use. The engine can be deleted when this returns.
  void close() noexcept;

private:
  GPUMEM_REQUIRES(one_shard, all_shards) void refuse_requests(woken_waiters& waiters) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) void after_limit_change(woken_waiters& waiters);
  void destroy() noexcept override { delete this; }

  // Each member keeps references to members before it. parts_ also refers to release_, which runs on the library thread
  // to serve waiting requests and to give memory back.
  pool_parts parts_;
  shard_frees frees_;
  waiting_requests requests_;
  progress_monitor monitor_;
  request_queue queue_;
  request_passes request_passes_;
  free_path free_path_;
  allocate_path allocate_path_;
  release_task release_;
};

} // namespace gpumem::detail
