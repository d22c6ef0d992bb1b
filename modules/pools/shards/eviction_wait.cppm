// The wait for blocks that thread caches have evicted.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:eviction_wait;
import :shard_list;
import :shard_roles;
import :std;
import :sync;

namespace gpumem::detail {

/// Lets requests wait until no evicted block is left. A thread cache evicts a block to make room. Until the cache's
/// thread has freed the block to a shard, the block is on no list.
export class eviction_wait {
public:
  /// Returns once `any()` is false, which means that no evicted block is left. Unlocks the shards during the wait.
  template <class Any> [[clang::requires_capability(one_shard, all_shards)]] void wait(shard_list& shards, Any any) {
    ++waiters_;
    while (any()) shards.wait(freed_);
    --waiters_;
  }
  /// Wakes the threads in wait(). Called after an evicted block was freed.
  [[clang::requires_shared_capability(all_shards)]] inline void notify() noexcept {
    if (waiters_ > 0) [[unlikely]]
      freed_.notify_all();
  }

private:
  unsigned waiters_ __attribute__((guarded_by(all_shards))) = 0;
  sync::spin_condition freed_;
};

} // namespace gpumem::detail
