// Frees that the thread's cache does not take.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:free_path;
import :block;
import :deferred_frees;
import :free_events;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :progress_monitor;
import :request_queue;
import :shard_frees;
import :shard_list;
import :shard_roles;
import :std;
import :stream;
import :stream_timeline;
import :stream_uses;
import :thread_caches;
import :waiting_requests;

namespace gpumem::detail {

/// The result of a free.
export enum class free_result : std::uint8_t {
  refused, ///< a misuse was reported, and nothing was freed
  done,
  last, ///< it freed the last live block of a pool without handles, which the caller now closes
};

/// The result of a free into the calling thread's cache.
export struct cached_free {
  stream_use use; ///< the use that ends
  thread_caches::result result;
  shard_list::lookup freed; ///< if it lies in the thread's own shard
  inline bool done() const noexcept { return result.inserted && !result.evicted; }
};

/// Frees under the lock of the block's shard, under the locks of all shards, or without a lock as a remote free.
/// Allocates no host memory.
export class free_path {
public:
  /// Refers to all arguments.
  free_path(pool_parts& parts, shard_frees& frees, deferred_frees& deferred, waiting_requests const& waiting,
            progress_monitor& monitor, request_queue& queue) noexcept
      : parts_{parts}, frees_{frees}, deferred_{deferred}, waiting_{waiting}, monitor_{monitor}, queue_{queue},
        events_{parts} {}

  /// Whether a thread's cache may hold the block. No other thread changes a live block, so no lock is needed.
  static inline bool may_cache(block const& freed, stream_key const& key, std::optional<std::size_t> bytes) noexcept {
    return freed.is_live() && (!bytes || *bytes == freed.requested) && freed.uses.empty() && !key.is_host() &&
           !key.capturing();
  }
  /// Returns the use that ends now on the stream. A free whose size is not known counts as a large one.
  [[gnu::always_inline]] static inline stream_use
  end_use(pool_mode const& mode, stream_key const& key, block const* freed, std::optional<std::size_t> bytes) noexcept {
    auto& timeline = key.timeline();
    if (!timeline.is_mortal()) [[likely]]
      return {&timeline, timeline.current_epoch()};
    return {&timeline, key.end_use(freed ? freed->bytes : bytes.value_or(~std::size_t{0} / 2), mode.frees_record())};
  }
  /// Frees a block after an attempt to cache it, and the block that the cache has evicted.
  free_result finish(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                     cached_free const& cached) noexcept;
  /// Frees a part of a request of which another part was refused: see request_queue::return_part.
  void return_part(stream_key const& key, void* pointer) noexcept;

private:
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
  free_result free_with_all_locks(free_call const& call) noexcept;
  free_result free_evicted_block(block& cached) noexcept;
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  finish_free(block& freed, free_call const& call, pool_shard& in) noexcept;

  pool_parts& parts_;
  shard_frees& frees_;
  deferred_frees& deferred_;
  waiting_requests const& waiting_;
  progress_monitor& monitor_;
  request_queue& queue_;
  free_events events_;
};

} // namespace gpumem::detail
