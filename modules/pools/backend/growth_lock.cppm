// The rule that one thread at a time grows a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:growth_lock;
import :chunk_list;
import :shard_list;
import :std;
import :sync;

namespace gpumem::detail {

/// Keeps other threads from growing a pool or changing its pages while one thread makes driver calls for that without
/// the locks of the shards. Guarded by the locks of all shards.
export class growth_lock {
public:
  inline bool taken() const noexcept { return taken_; }
  /// Waits while another thread has it. Returns whether it waited. Unlocks the shards during the wait.
  bool wait(all_shards_lock& held);
  /// Takes it and unlocks the shards. No thread may have it.
  void begin(all_shards_lock& held) noexcept;
  void end() noexcept;
  /// Waits until the bytes that are being released change. Unlocks the shards during the wait.
  void wait_for_release(chunk_list const& chunks, all_shards_lock& held);
  /// These bytes have changed.
  void notify_release() noexcept { changed_.notify_all(); }

private:
  sync::spin_condition changed_;
  bool taken_ = false;
};

} // namespace gpumem::detail
