// The rule that one thread at a time grows a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:growth_lock;
import :chunk_list;
import :shard_list;
import :shard_roles;
import :std;
import :sync;

namespace gpumem::detail {

/// Keeps other threads from growing a pool or changing its pages while one thread makes driver calls for that without
/// the locks of the shards. Guarded by the locks of all shards.
export class growth_lock {
public:
  explicit growth_lock(shard_list& shards) noexcept : shards_{shards} {}

  [[clang::requires_shared_capability(all_shards)]] inline bool taken() const noexcept { return taken_; }
  /// Waits while another thread has it. Returns whether it waited. Unlocks the shards during the wait.
  [[clang::requires_capability(one_shard, all_shards)]] bool wait();
  /// Takes it. No thread may have it.
  [[clang::requires_capability(all_shards)]] void begin() noexcept;
  [[clang::requires_capability(all_shards)]] void end() noexcept;
  /// Waits until the bytes that are being released change. Unlocks the shards during the wait.
  [[clang::requires_capability(one_shard, all_shards)]] void wait_for_release(chunk_list const& chunks);
  /// These bytes have changed.
  void notify_release() noexcept { changed_.notify_all(); }

private:
  shard_list& shards_;
  sync::spin_condition changed_;
  bool taken_ __attribute__((guarded_by(all_shards))) = false;
};

} // namespace gpumem::detail
