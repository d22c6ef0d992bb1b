// Passes of the library thread over a pool, and the return of its memory to the upstream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:release_task;
import :deferred_frees;
import :deferred_release;
import :pool_parts;
import :progress_monitor;
import :request_passes;
import :shard_frees;
import :shard_list;
import :shard_roles;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// Serves requests that wait, and gives memory back whose uses the host has seen complete: beyond the release
/// threshold, or all of a closed pool. The task of a closed pool ends with the pool.
export class release_task final : public deferred_release {
public:
  /// The owner of the pool.
  class owner {
  public:
    /// Destroys the closed pool, and this task with it, when all memory was given back.
    virtual void destroy() noexcept = 0;

  protected:
    ~owner() = default;
  };

  /// Refers to all arguments.
  release_task(pool_parts& parts, shard_frees& frees, deferred_frees& deferred, progress_monitor& monitor,
               request_passes& requests, owner& of) noexcept
      : parts_{parts}, frees_{frees}, deferred_{deferred}, monitor_{monitor}, requests_{requests}, owner_{of} {}

  /// Gives memory back now, as long as at least `keep` bytes remain. Returns the bytes given back. Under the locks of
  /// all shards, which it unlocks during driver calls.
  [[clang::requires_capability(one_shard, all_shards)]] std::size_t release(std::size_t keep);
  /// Called when no handle and no live block is left. Gives all memory back; later passes give back memory whose uses
  /// the host has not seen complete. The pool may be gone when this returns.
  void close() noexcept;

private:
  // The reason why memory that is to go back stays after a pass.
  enum class held_by { nothing, open_events, uses_without_event };
  void expire() noexcept override;
  [[clang::requires_capability(one_shard, all_shards)]] held_by release_pass() noexcept;
  [[clang::requires_shared_capability(all_shards)]] inline bool is_beyond_threshold() const noexcept {
    return parts_.chunks.reserved() > parts_.options.release_threshold;
  }
  std::vector<stream_timeline*> streams_without_event() override;

  pool_parts& parts_;
  shard_frees& frees_;
  deferred_frees& deferred_;
  progress_monitor& monitor_;
  request_passes& requests_;
  owner& owner_;
};

} // namespace gpumem::detail
