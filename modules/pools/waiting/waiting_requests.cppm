// The requests that wait for a pool's memory, and the facts that decide whether one of them may go on.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:waiting_requests;
import :error;
import :frees;
import :pool_parts;
import :shard_roles;
import :std;
import :waiter;

namespace gpumem::detail {

/// The waiting requests of one pool, and what each of them lacks. A request of several parts asks for several blocks at
/// once; if one is refused, it gives the others back. Guarded by the locks of all shards of the pool.
export class waiting_requests {
public:
  /// Keeps references to both arguments.
  waiting_requests(pool_parts& parts, deferred_frees const& deferred) noexcept
      : queue{parts.options.max_overtakes}, parts_{parts}, deferred_{deferred} {}

  waiter_list queue __attribute__((guarded_by(all_shards)));

  /// For a request that has a turn, bytes are set aside. Returns the bytes that are free or could be reserved, less
  /// those set aside for other requests. `its_own`: the bytes set aside for the request that asks.
  [[clang::requires_capability(one_shard, all_shards)]] std::size_t headroom(std::size_t its_own = 0) const noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] bool fits(waiter const& item) const noexcept;
  /// Rounds a size up as the pool does when it cannot grow: small sizes to a size class, larger ones to a multiple of
  /// 256 bytes.
  std::size_t rounded(std::size_t bytes) const noexcept;
  /// Returns the size of the block for a user's request, rounded up so. It includes the guards of a hardened pool.
  std::size_t block_size(std::size_t bytes, std::size_t alignment) const noexcept;
  /// Returns the sum of the block sizes of a request. That of a request that asks only for a turn may be more than the
  /// pool can have: the request then waits until no memory is live.
  std::size_t rounded(waiter const& item) const noexcept;
  /// Returns why the request can never be met any more: outcome::closed, device_lost or too_large; nullopt if a state
  /// of the pool could serve it. A request that asks only for a turn is never too large.
  [[clang::requires_shared_capability(all_shards)]] std::optional<outcome> refusal(waiter const& item) const noexcept;
  /// Returns whether waiting cannot help the request: neither a free nor the end of work on streams can give it memory.
  /// No free can come if no memory is live, set aside for the turn of another request, or freed in a graph capture.
  [[clang::requires_capability(one_shard, all_shards)]] bool waits_for_nothing(waiter const& item) const noexcept;
  /// Returns whether the pool has no handle, no live block and no waiting request.
  [[clang::requires_capability(one_shard, all_shards)]] bool is_pool_unused() const noexcept;
  /// Returns whether a free inside a graph capture waits for a later call that completes it.
  [[clang::requires_shared_capability(all_shards)]] inline bool has_deferred_frees() const noexcept {
    return deferred_.any();
  }

  /// Returns a count of changes that may let a refused request go on: it grows with each free, and with each free range
  /// whose uses a poll finds complete.
  [[clang::requires_capability(one_shard, all_shards)]] std::uint64_t change_count() const noexcept;
  /// Returns the count for this request. For a request of several parts, it does not include blocks that such requests
  /// gave back.
  [[clang::requires_capability(one_shard, all_shards)]] std::uint64_t change_count(waiter const& item) const noexcept;
  /// Returns the count without the blocks that requests of several parts gave back.
  [[clang::requires_capability(one_shard, all_shards)]] std::uint64_t frees_of_others() const noexcept {
    return change_count() - returned_parts_;
  }
  [[clang::requires_capability(all_shards)]] void count_returned_parts(std::uint64_t changes) noexcept {
    returned_parts_ += changes;
  }

  /// Notes that the upstream has refused to give the pool more than `reserved` bytes in all. The note is valid as long
  /// as requests wait.
  [[clang::requires_capability(all_shards)]] void set_upstream_limit(std::size_t reserved) noexcept {
    upstream_limit_ = reserved;
  }
  /// Forgets that. Returns whether there was a note.
  [[clang::requires_capability(all_shards)]] bool clear_upstream_limit() noexcept {
    return std::exchange(upstream_limit_, SIZE_MAX) != SIZE_MAX;
  }

private:
  [[clang::requires_capability(one_shard, all_shards)]] bool is_held_by_others(waiter const& item) const noexcept;
  [[clang::requires_shared_capability(all_shards)]] bool could_serve(waiter const& item) const noexcept;

  pool_parts& parts_;
  deferred_frees const& deferred_;
  std::size_t upstream_limit_ __attribute__((guarded_by(all_shards))) = SIZE_MAX;
  // The changes that count_returned_parts() has counted: blocks that requests of several parts gave back.
  std::uint64_t returned_parts_ __attribute__((guarded_by(all_shards))) = 0;
};

} // namespace gpumem::detail
