// The lock under which one thread at a time grows a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:growth_lock;
import :chunk_list;
import :shard_list;
import :shard_roles;
import :std;
import :sync;

namespace gpumem::detail {

/// While a thread grows a pool or changes its pages, it unlocks the shards during its driver calls. This lock then
/// keeps other threads from doing the same. Guarded by the locks of all shards.
export class growth_lock {
public:
  explicit growth_lock(shard_list& shards) noexcept : shards_{shards} {}

  [[clang::requires_shared_capability(all_shards)]] inline bool taken() const noexcept { return taken_; }
  /// Waits while another thread has this lock. Returns whether it waited. Unlocks the shards during the wait.
  [[clang::requires_capability(one_shard, all_shards)]] bool wait();
  /// Takes this lock, which no other thread may have.
  [[clang::requires_capability(all_shards)]] void begin() noexcept;
  [[clang::requires_capability(all_shards)]] void end() noexcept;
  /// Waits until `chunks.releasing()` changes, because another thread has released memory. Unlocks the shards during
  /// the wait.
  [[clang::requires_capability(one_shard, all_shards)]] void wait_for_release(chunk_list const& chunks);
  /// Wakes the threads in wait_for_release(), after a change of `chunks.releasing()`.
  void notify_release() noexcept { changed_.notify_all(); }

private:
  shard_list& shards_;
  sync::spin_condition changed_;
  bool taken_ __attribute__((guarded_by(all_shards))) = false;
};

} // namespace gpumem::detail
