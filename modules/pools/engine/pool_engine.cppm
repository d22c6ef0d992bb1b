// The engine of one pool: its parts, and the paths of allocations and frees over them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
export module gpumem:pool_engine;
import :allocate_path;
import :block_info;
import :deferred_frees;
import :device;
import :error;
import :free_path;
import :memory_report;
import :out_of_memory;
import :pool_backend;
import :pool_counters;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_statistics;
import :pool_upstream;
import :progress_monitor;
import :recorded_uses;
import :release_task;
import :request_passes;
import :request_queue;
import :shard_allocator;
import :shard_frees;
import :shard_list;
import :shard_roles;
import :size_class;
import :std;
import :stream;
import :stream_uses;
import :sync;
import :thread_caches;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

/// An allocation or a free takes the lock of the thread's cache, if that serves it. Otherwise it takes the lock of the
/// thread's shard, and after that the locks of all shards. Under a lock the engine makes driver calls on streams, but
/// neither calls its upstream nor waits. The engine deletes itself after close().
export class pool_engine final : private release_task::owner {
public:
  /// Throws what `throw_failure` throws for the failure of the upstream, std::invalid_argument, std::bad_alloc.
  pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options);

  [[gnu::always_inline]] inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                                                      std::size_t alignment) noexcept {
    auto const size = size_class::of(std::max(bytes, parts_.smallest_block), parts_.mode.largest_numbered());
    auto const thread = sync::thread_index();
    if (alignment <= granule && !key.is_host()) [[likely]] {
      if (auto* const cached = parts_.caches.pop(key.timeline(), size, bytes, thread)) return cached->pointer();
    }
    return allocate_path_.allocate(key, size, bytes, alignment);
  }
  /// Puts a block into the calling thread's cache, if the cache may hold it; without `bytes` any size is right.
  /// `free_slow` does the rest.
  [[gnu::always_inline]] inline cached_free try_cache(stream_key const& key, void* pointer,
                                                      std::optional<std::size_t> bytes) noexcept {
    auto const thread = sync::thread_index();
    auto& shard = parts_.shards.shard_of(thread);
    auto* const freed = shard.find_live(pointer);
    bool const may = freed && free_path::may_cache(*freed, key, bytes);
    // The epoch is read after all work that the caller has enqueued, and before the block changes.
    auto const use = free_path::end_use(parts_.mode, key, freed, bytes);
    if (!may) [[unlikely]]
      return {use, {false, nullptr}, {freed, &shard}};
    return {use, parts_.caches.insert(*freed, use, thread), {freed, &shard}};
  }
  /// `cached`: the result of `try_cache` for the same call.
  inline free_result free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                               cached_free const& cached) noexcept {
    return free_path_.finish(key, pointer, bytes, cached);
  }
  /// Calls try_cache() and free_slow().
  inline free_result deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
    return free_slow(key, pointer, bytes, try_cache(key, pointer, bytes));
  }
  /// Returns the live block that starts at the address, for a caller that owns it; nullopt if there is none. No lock.
  inline std::optional<owned_block> find_owned(void const* pointer) noexcept {
    auto const* const found = parts_.shards.find_live(pointer).that;
    if (!found || !found->is_live()) return std::nullopt;
    return owned_block{found->requested, found->stream};
  }
  /// See request_queue::return_part.
  void return_part(stream_key const& key, void* pointer) noexcept { free_path_.return_part(key, pointer); }

  /// See recorded_uses, request_queue, request_passes and pool_statistics.
  inline recorded_uses& uses() noexcept { return uses_; }
  inline request_queue& requests() noexcept { return queue_; }
  inline request_passes& passes() noexcept { return request_passes_; }
  inline pool_statistics& statistics() noexcept { return statistics_; }
  inline pool_options const& options() const noexcept { return parts_.options; }
  inline pool_upstream& upstream() noexcept { return *parts_.upstream; }
  /// Returns the device; none over an upstream without a device.
  inline std::optional<device> where() const noexcept { return parts_.backend.where(); }
  inline bool lost() const noexcept { return parts_.backend.lost(); }
  /// Whether all requests are refused.
  inline bool refuses() const noexcept { return parts_.requests.is_closed(); }
  /// Whether requests wait.
  inline bool has_waiting() const noexcept { return parts_.requests.has_waiting(); }
  bool is_consistent();
  /// Throws std::bad_alloc.
  std::string describe_memory() { return detail::describe_memory(parts_, frees_); }

  std::size_t trim(std::size_t keep);
  /// Throws what `throw_failure` throws for the failure of the upstream, std::bad_alloc.
  std::size_t reserve(std::size_t bytes);
  /// Throws std::invalid_argument.
  void set_limit(std::size_t bytes);
  /// Keeps the pages of these bytes in place until unpin() was called as often as pin(). Returns false if a byte is not
  /// the pool's.
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  /// Makes the peaks of the statistics those of this moment.
  void reset_peaks();
  /// Lets another device read and write all memory of the pool. Throws cuda_error, std::bad_alloc.
  void open_to(device peer);
  /// As virtual_pages::export_page; outcome::invalid_argument for a pointer outside the pages of the pool.
  expected<int, failure> export_page(void const* pointer);
  /// Waits until all work is complete that keeps free memory in the pool. Returns false if some was not seen complete.
  /// Throws std::bad_alloc.
  bool synchronize(sync::duration longest);

  /// Refuses all further requests with outcome::closed, and answers the waiting ones with it.
  void refuse_requests() noexcept;
  /// Notes that no handle is left. Returns true if there is no live block and no request either. Otherwise the end of
  /// the last one returns free_result::last or waiting::last.
  bool drop_last_handle() noexcept;
  /// Called when no handle and no live block is left. Returns all memory to the upstream; the library thread returns
  /// memory whose uses the host has not seen complete. The engine may be gone when this returns.
  void close() noexcept;

private:
  [[clang::requires_capability(one_shard, all_shards)]] void refuse_requests(woken_waiters& woken) noexcept;
  void destroy() noexcept override { delete this; }

  // Each refers to those before it, and the first to the last, its timer.
  pool_parts parts_;
  shard_frees frees_;
  deferred_frees deferred_;
  waiting_requests waiting_;
  progress_monitor monitor_;
  request_queue queue_;
  request_passes request_passes_;
  free_path free_path_;
  shard_allocator allocator_;
  out_of_memory out_of_memory_;
  allocate_path allocate_path_;
  recorded_uses uses_;
  pool_statistics statistics_;
  release_task release_;
};

} // namespace gpumem::detail
