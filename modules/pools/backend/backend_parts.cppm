// The data of a pool's backend, and the lock under which one thread at a time grows a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:backend_parts;
import :chunk_list;
import :device;
import :error;
import :growth_policy;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :std;
import :sync;

namespace gpumem::detail {

/// While a thread grows a pool or changes its pages, it unlocks the shards during its driver calls. The growth lock
/// then keeps other threads from growing the pool or changing its pages. Its state is guarded by the locks of all
/// shards.
export class growth_lock {
public:
  explicit growth_lock(shard_list& shards) noexcept : shards_{shards} {}

  GPUMEM_REQUIRES_SHARED(all_shards) inline bool taken() const noexcept { return taken_; }
  /// Waits while another thread has this lock. Returns whether it waited. Unlocks the shards during the wait.
  GPUMEM_REQUIRES(one_shard, all_shards) bool wait();
  /// Takes this lock. No other thread has it: the caller has called wait().
  GPUMEM_REQUIRES(all_shards) void begin() noexcept;
  GPUMEM_REQUIRES(all_shards) void end() noexcept;
  /// Waits until another thread has released memory, so that `chunks.releasing()` (the bytes that are being given back)
  /// changes. Unlocks the shards during the wait.
  GPUMEM_REQUIRES(one_shard, all_shards) void wait_for_release(chunk_list const& chunks);
  /// Wakes the threads in wait_for_release(), after a change of `chunks.releasing()`.
  void notify_release() noexcept { changed_.notify_all(); }

private:
  shard_list& shards_;
  sync::spin_condition changed_;
  bool taken_ GPUMEM_GUARDED_BY(all_shards) = false;
};

/// Unlocks the shards while the upstream gets memory or takes it back, which may call functions of the user. If such a
/// function calls the pool, the calling thread must not wait for its own growth: the pool refuses the call.
export class GPUMEM_SCOPED_LOCK upstream_call {
public:
  explicit upstream_call(shard_list& shards) noexcept GPUMEM_RELEASES(one_shard, all_shards) GPUMEM_NO_LOCK_ANALYSIS;
  upstream_call(upstream_call const&) = delete;
  upstream_call& operator=(upstream_call const&) = delete;
  GPUMEM_RELEASES() GPUMEM_NO_LOCK_ANALYSIS ~upstream_call();

  /// Returns whether the calling thread calls the upstream of this pool now.
  static bool runs_here(shard_list const& shards) noexcept;
  /// Throws rule_error if it does.
  static void throw_if_here(shard_list const& shards);

private:
  all_shards_unlock unlocked_;
  shard_list const& of_;
  upstream_call const* const outer_; // of another pool
};

/// Base of an object that is told of each change of a pool's reserved bytes, while the shards are still locked.
export class reserved_observer {
public:
  GPUMEM_REQUIRES(all_shards) virtual void on_reserved_changed() noexcept = 0;

protected:
  ~reserved_observer() = default;
};

/// The memory of a pool, and the rules for its growth. Changed only under the locks of all shards.
export struct backend_parts {
  backend_parts(pool_upstream& upstream, pool_options const& options, std::optional<device> where, reuse_rules& reuse,
                chunk_list& chunks, shard_list& pool, reserved_observer& watcher);

  pool_upstream& upstream;
  pool_options const& options;
  std::optional<device> const where; ///< the upstream's device; nullopt if it has none
  reuse_rules& rules;
  chunk_list& chunks;
  shard_list& shards;
  reserved_observer& observer;
  growth_policy growth;
  growth_lock lock;
  bool closed GPUMEM_GUARDED_BY(all_shards) = false; ///< the pool has no users any more

  inline bool lost() const noexcept { return where && where->lost(); }
  // Returns whether the pool is closed and its device is lost. Such a pool gives back all memory: no work runs any
  // more, and a wait of the host for its work would never end.
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool device_gone() const noexcept { return closed && lost(); }
  /// Marks the device as lost if that is the reason of `failure`, a failure of the upstream.
  void note_failure(failure const& failure) const noexcept;
  /// Counts bytes that the upstream has given to the shard, and tells the observer.
  GPUMEM_REQUIRES(one_shard, all_shards) void count_growth(pool_shard& shard, std::size_t bytes) noexcept;
};

} // namespace gpumem::detail
