// The wait for blocks that thread caches have evicted.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:eviction_wait;
import :shard_list;
import :std;
import :sync;

namespace gpumem::detail {

/// Wakes requests that wait until evicted blocks have reached a free list: such a block is in no list until its thread
/// frees it. Guarded by the locks of all shards; notify() by the lock of any.
export class eviction_wait {
public:
  /// Returns once `any()` is false: no block is evicted. Unlocks the shards during the wait.
  template <class Any> void wait(all_shards_lock& held, Any any) {
    ++waiters_;
    while (any()) held.wait(freed_);
    --waiters_;
  }
  /// An evicted block was freed.
  inline void notify() noexcept {
    if (waiters_ > 0) [[unlikely]]
      freed_.notify_all();
  }

private:
  unsigned waiters_ = 0;
  sync::spin_condition freed_;
};

} // namespace gpumem::detail
