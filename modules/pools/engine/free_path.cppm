// Frees of blocks that the thread cache does not take, recorded uses of live blocks, and checks of callers' pointers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstdint>
export module gpumem:free_path;
import :block;
import :frees;
import :misuse;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :request_queue;
import :shard_list;
import :shard_roles;
import :std;
import :stream;
import :stream_timeline;
import :thread_caches;

namespace gpumem::detail {

/// Returns the live block that begins at the pointer. `bytes`: its requested size; without it any size is right. If
/// there is no such block, sets `wrong` to a misuse by the caller and returns null. The caller holds the locks of all
/// shards, and reports the misuse after it has unlocked them.
export GPUMEM_REQUIRES(one_shard, all_shards) block* find_or_explain(pool_parts& parts, stream_key const& key,
                                                                     void* pointer, std::optional<std::size_t> bytes,
                                                                     late_misuse& wrong) noexcept;

/// The result of a free.
export enum class free_result : std::uint8_t {
  refused, ///< a misuse by the caller was reported, and nothing was freed
  done,
  last, ///< freed; the pool has no handle, live block or request left, and the caller closes it
};

/// The result of an attempt to put a freed block into the calling thread's cache.
export struct cached_free {
  stream_use use; ///< the stream of the free, and its epoch then: a number that grows with each event
  thread_cache::result result;
  shard_list::lookup freed; ///< the block, if it lies in the thread's own shard
  inline bool done() const noexcept { return result.inserted && !result.evicted; }
};

/// Frees the blocks that the thread's cache does not take. A free takes the lock of the block's shard. If another
/// thread holds that lock, the free becomes a remote free. Some frees take the locks of all shards, for example a free
/// inside a graph capture. No free allocates host memory.
export class free_path {
public:
  /// Keeps references to all arguments.
  free_path(pool_parts& parts, shard_frees& frees, waiting_requests const& requests, progress_monitor& monitor,
            request_queue& queue) noexcept
      : parts_{parts}, frees_{frees}, requests_{requests}, monitor_{monitor}, queue_{queue} {}

  /// Returns whether a thread's cache may hold the block. Reads the block without a lock, since only the owner of a
  /// live block changes it.
  static inline bool may_cache(block const& returned, stream_key const& key,
                               std::optional<std::size_t> bytes) noexcept {
    return returned.is_live() && (!bytes || *bytes == returned.requested) && returned.uses.empty() &&
           !key.identity().is_host() && !key.identity().capturing();
  }
  /// Ends a block's use on a stream. Returns the stream and its current epoch. On a mortal stream records an event
  /// after enough frees or freed bytes. A free of unknown size always counts as enough.
  [[gnu::always_inline]] static inline stream_use
  end_use(pool_mode const& mode, stream_key const& key, block const* block, std::optional<std::size_t> bytes) noexcept {
    auto& timeline = key.identity().timeline();
    if (!timeline.is_mortal()) [[likely]]
      return {&timeline, timeline.current_epoch()};
    return {&timeline,
            key.identity().end_use(block ? block->bytes : bytes.value_or(~std::size_t{0} / 2), mode.frees_record())};
  }
  /// Completes a free after an attempt to cache the block. First frees the block that the cache evicted, if there is
  /// one. Then frees the caller's block, unless the cache took it.
  free_result free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                        cached_free const& cached) noexcept;
  /// Reports a free on a stream whose device may not use the pool's memory.
  void report_unopened(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  /// Frees a block that a request for several blocks had got before another of its blocks was refused. Such a request
  /// keeps none of its blocks.
  void return_part(stream_key const& key, void* pointer) noexcept;
  /// Declares that all uses of the block on this stream are enqueued. After the free, the memory is reused only when
  /// these uses are over too. If no live block begins at the pointer, reports a misuse and returns false. Throws
  /// cuda_error, std::bad_alloc.
  bool record_use(stream_key const& key, void* pointer);
  /// Returns the uses on other streams that were recorded for the live block at the address.
  stream_uses recorded_uses(void const* pointer) noexcept;

private:
  // The arguments of one free.
  struct free_call {
    stream_key const& key;
    void* pointer;
    std::optional<std::size_t> bytes;
    stream_use use;
    inline bool fits(block const& returned) const noexcept { return !bytes || *bytes == returned.requested; }
  };
  free_result free_uncached(free_call const& call, shard_list::lookup const& lookup) noexcept;
  bool free_to_shard(free_call const& call, shard_list::lookup const& lookup) noexcept;
  bool push_remote_free(free_call const& call, shard_list::lookup const& lookup) noexcept;
  free_result free_with_all_locks(free_call const& call) noexcept;
  free_result free_evicted_block(block& cached) noexcept;
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  void free_under_lock(block& returned, free_call const& call, pool_shard& shard) noexcept;
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  stream_use record_if_due(free_call const& call, std::size_t bytes, pool_shard& shard) noexcept;
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  bool reaches_threshold(stream_timeline& timeline, std::size_t bytes, pool_shard& shard) noexcept;
  stream_use record_event(stream_key const& key, stream_use const& use) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) void make_room_for_use(stream_uses& uses, stream_key const& key);

  pool_parts& parts_;
  shard_frees& frees_;
  waiting_requests const& requests_;
  progress_monitor& monitor_;
  request_queue& queue_;
};

} // namespace gpumem::detail
