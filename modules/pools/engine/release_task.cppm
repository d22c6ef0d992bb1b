// The task by which the library thread serves a pool's waiting requests, and gives the pool's memory back to its
// upstream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:release_task;
import :deferred_release;
import :frees;
import :pool_parts;
import :request_queue;
import :shard_list;
import :shard_roles;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// The passes of a pool. A pass serves requests that wait for memory. It also gives free memory back to the upstream:
/// memory beyond the release threshold, or all memory of a closed pool. The host must have seen all uses of that memory
/// complete. A closed pool and its task end together.
export class release_task final : public deferred_release {
public:
  /// The object that holds the pool and this task.
  class owner {
  public:
    /// Destroys the closed pool, and this task with it, after all memory has gone back.
    virtual void destroy() noexcept = 0;

  protected:
    ~owner() = default;
  };

  /// Keeps references to all arguments.
  release_task(pool_parts& parts, shard_frees& frees, progress_monitor& monitor, request_passes& requests,
               owner& owner) noexcept
      : parts_{parts}, frees_{frees}, monitor_{monitor}, requests_{requests}, owner_{owner} {}

  /// Ends a round of the shards, and gives back free memory whose uses the host has seen complete, as long as at least
  /// `keep` bytes stay reserved. Returns the bytes given back. The caller holds the locks of all shards; they are
  /// released during calls of the upstream.
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t release(std::size_t keep);
  /// Gives back all memory. Called when no handle, live block or request is left. Later passes give back memory that
  /// streams still use. When this returns, the pool may already be destroyed.
  void close() noexcept;

private:
  // The reason why a pass has left memory that should go back. `open_events`: streams use it, and polls of their events
  // will show the end. `uses_without_event`: streams use it, and have no event that shows the end.
  enum class held_by { nothing, open_events, uses_without_event };
  // The step that a thread takes after a pass of a closed pool, without the locks.
  enum class next_step { nothing, retry, end };
  void expire() noexcept override;
  GPUMEM_REQUIRES(one_shard, all_shards) next_step after_closed_pass(held_by keeper) noexcept;
  void take(next_step step) noexcept;
  GPUMEM_REQUIRES_SHARED(all_shards) std::size_t kept_bytes() const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) held_by release_pass(bool release_all) noexcept;
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool is_beyond_threshold() const noexcept {
    return parts_.chunks.reserved() > parts_.options.release_threshold;
  }
  std::vector<stream_timeline*> streams_without_event() override;
  given_back give_back() noexcept override;

  pool_parts& parts_;
  shard_frees& frees_;
  progress_monitor& monitor_;
  request_passes& requests_;
  owner& owner_;
};

} // namespace gpumem::detail
