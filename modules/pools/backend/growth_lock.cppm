// The lock under which one thread at a time grows a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:growth_lock;
import :chunk_list;
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

  [[clang::requires_shared_capability(all_shards)]] inline bool taken() const noexcept { return taken_; }
  /// Waits while another thread has this lock. Returns whether it waited. Unlocks the shards during the wait.
  [[clang::requires_capability(one_shard, all_shards)]] bool wait();
  /// Takes this lock. No other thread has it: the caller has called wait().
  [[clang::requires_capability(all_shards)]] void begin() noexcept;
  [[clang::requires_capability(all_shards)]] void end() noexcept;
  /// Waits until another thread has released memory, so that `chunks.releasing()` (the bytes that are being given back)
  /// changes. Unlocks the shards during the wait.
  [[clang::requires_capability(one_shard, all_shards)]] void wait_for_release(chunk_list const& chunks);
  /// Wakes the threads in wait_for_release(), after a change of `chunks.releasing()`.
  void notify_release() noexcept { changed_.notify_all(); }

private:
  shard_list& shards_;
  sync::spin_condition changed_;
  bool taken_ __attribute__((guarded_by(all_shards))) = false;
};

/// Unlocks the shards while the upstream gets memory or takes it back, which may call functions of the user. If such a
/// function calls the pool, the calling thread must not wait for its own growth: the pool refuses the call.
export class [[clang::scoped_lockable]] upstream_call {
public:
  explicit upstream_call(shard_list& of) noexcept
      __attribute__((release_capability(one_shard, all_shards), no_thread_safety_analysis));
  upstream_call(upstream_call const&) = delete;
  upstream_call& operator=(upstream_call const&) = delete;
  [[clang::release_capability, clang::no_thread_safety_analysis]] ~upstream_call();

  /// Returns whether the calling thread calls the upstream of this pool now.
  static bool runs_here(shard_list const& of) noexcept;
  /// Throws rule_error if it does.
  static void throw_if_here(shard_list const& of);

private:
  all_shards_unlock unlocked_;
  shard_list const& of_;
  upstream_call const* const outer_; // of another pool
};

} // namespace gpumem::detail
