// Frees inside a graph capture, which a later call outside a capture completes.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:deferred_frees;
import :block;
import :pool_parts;
import :shard_frees;
import :shard_roles;
import :std;
import :stream;

namespace gpumem::detail {

/// The blocks that were freed on capturing streams. The pool records no event on such a stream, and the captured work
/// has not run. So the blocks stay out of use until the next call outside a capture completes the frees. Guarded by the
/// locks of all shards.
export class deferred_frees {
public:
  /// Keeps references to both.
  deferred_frees(pool_parts& parts, shard_frees& frees) noexcept : parts_{parts}, frees_{frees} {}

  [[clang::requires_shared_capability(all_shards)]] inline bool any() const noexcept { return first_ != nullptr; }
  [[clang::requires_capability(one_shard, all_shards)]] void add(block& freed, stream_key const& key) noexcept;
  /// Completes all deferred frees. `now`: the stream of the current call; null if it has none. If the call was given
  /// the handle of that stream, an event can be recorded on it.
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
