// Frees inside a graph capture, which wait for a call outside it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:deferred_frees;
import :block;
import :pool_parts;
import :shard_frees;
import :shard_roles;
import :std;
import :stream;

namespace gpumem::detail {

/// The blocks that were freed on capturing streams: such a stream must not be touched, and the captured work has not
/// run. The next call outside a capture completes these frees. Guarded by the locks of all shards.
export class deferred_frees {
public:
  /// Refers to both.
  deferred_frees(pool_parts& parts, shard_frees& frees) noexcept : parts_{parts}, frees_{frees} {}

  [[clang::requires_shared_capability(all_shards)]] inline bool any() const noexcept { return first_ != nullptr; }
  [[clang::requires_capability(one_shard, all_shards)]] void add(block& freed, stream_key const& key) noexcept;
  /// Completes all of them. `now`: the current call's stream; an event can be recorded on it if the call was given its
  /// handle. May be null.
  [[clang::requires_capability(one_shard, all_shards)]] inline void run(stream_key const* now) noexcept {
    if (first_) [[unlikely]]
      run_all(now);
  }

private:
  [[clang::requires_capability(one_shard, all_shards)]] void run_all(stream_key const* now) noexcept;

  pool_parts& parts_;
  shard_frees& frees_;
  block* first_ __attribute__((guarded_by(all_shards))) = nullptr;
};

} // namespace gpumem::detail
