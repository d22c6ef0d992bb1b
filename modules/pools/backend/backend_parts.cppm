// The data of a pool's backend, that is, of the classes that get memory from the upstream and give it back.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:backend_parts;
import :chunk_list;
import :device;
import :error;
import :growth_lock;
import :growth_policy;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :std;

namespace gpumem::detail {

/// Base of an object that is told of each change of a pool's reserved bytes, while the shards are still locked.
export class reserved_observer {
public:
  [[clang::requires_capability(all_shards)]] virtual void on_reserved_changed() noexcept = 0;

protected:
  ~reserved_observer() = default;
};

/// The memory of a pool, and the rules for its growth. Changed only under the locks of all shards.
export struct backend_parts {
  backend_parts(pool_upstream& from, pool_options const& asked, reuse_rules& reuse, chunk_list& all, shard_list& pool,
                reserved_observer& watcher);

  pool_upstream& upstream;
  pool_options const& options;
  std::optional<device> const where; ///< the upstream's device; nullopt if it has none
  reuse_rules& rules;
  chunk_list& chunks;
  shard_list& shards;
  reserved_observer& observer;
  growth_policy growth;
  growth_lock lock;
  bool closed __attribute__((guarded_by(all_shards))) = false; ///< the pool has no users any more

  inline bool lost() const noexcept { return where && where->lost(); }
  // Returns whether the pool is closed and its device is lost. Such a pool gives back all memory: no work runs any
  // more, and a wait of the host for its work would never end.
  [[clang::requires_shared_capability(all_shards)]] inline bool device_gone() const noexcept {
    return closed && lost();
  }
  /// Marks the device as lost if that is the reason of `why`, a failure of the upstream.
  void note_failure(failure const& why) const noexcept;
  /// Counts bytes that the upstream has given to the shard, and tells the observer.
  [[clang::requires_capability(one_shard, all_shards)]] void count_growth(pool_shard& into, std::size_t bytes) noexcept;
};

} // namespace gpumem::detail
