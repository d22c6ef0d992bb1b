// The requests that wait for a pool's memory, and the facts that decide whether one of them may go on.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:waiting_requests;
import :deferred_frees;
import :pool_parts;
import :shard_roles;
import :std;
import :waiter;

namespace gpumem::detail {

/// The waiting requests of one pool, and what each of them lacks. Guarded by the locks of all shards.
export class waiting_requests {
public:
  /// Refers to both.
  waiting_requests(pool_parts& parts, deferred_frees const& deferred) noexcept
      : queue{parts.options.max_overtakes}, parts_{parts}, deferred_{deferred} {}

  waiter_list queue __attribute__((guarded_by(all_shards)));

  /// Returns the bytes that are free or could be reserved, less those set aside for requests other than `its_own`.
  [[clang::requires_capability(one_shard, all_shards)]] std::size_t headroom(std::size_t its_own = 0) const noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] bool fits(waiter const& item) const noexcept;
  /// Rounds as for a request for which the pool cannot grow: only small sizes are rounded to a size class.
  std::size_t rounded(std::size_t bytes) const noexcept;
  std::size_t rounded(waiter const& item) const noexcept;
  /// Whether the request can no longer be met.
  [[clang::requires_shared_capability(all_shards)]] bool ends(waiter const& item) const noexcept;
  /// Whether nothing is left for which the request could wait.
  [[clang::requires_capability(one_shard, all_shards)]] bool waits_for_nothing(waiter const& item) const noexcept;
  /// Whether the pool has neither handle, nor live block, nor request.
  [[clang::requires_capability(one_shard, all_shards)]] bool is_pool_unused() const noexcept;
  /// Whether a free inside a capture waits for a call.
  [[clang::requires_shared_capability(all_shards)]] inline bool has_deferred_frees() const noexcept {
    return deferred_.any();
  }

  /// Returns a count of changes that may let a refused request go on: it grows with each free and each promoted range.
  [[clang::requires_capability(one_shard, all_shards)]] std::uint64_t change_count() const noexcept;
  /// The same for this request. Parts that requests of several blocks give back do not count for such requests.
  [[clang::requires_capability(one_shard, all_shards)]] std::uint64_t change_count(waiter const& item) const noexcept;
  /// The count without the parts that requests of several blocks have given back.
  [[clang::requires_capability(one_shard, all_shards)]] std::uint64_t frees_of_others() const noexcept {
    return change_count() - returned_parts_;
  }
  [[clang::requires_capability(all_shards)]] void count_returned_parts(std::uint64_t changes) noexcept {
    returned_parts_ += changes;
  }

  /// The upstream has refused to go beyond these reserved bytes, as long as requests wait.
  [[clang::requires_capability(all_shards)]] void set_upstream_limit(std::size_t reserved) noexcept {
    upstream_limit_ = reserved;
  }
  [[clang::requires_capability(all_shards)]] void clear_upstream_limit() noexcept { upstream_limit_ = SIZE_MAX; }

private:
  [[clang::requires_capability(one_shard, all_shards)]] bool is_held() const noexcept;

  pool_parts& parts_;
  deferred_frees const& deferred_;
  std::size_t upstream_limit_ __attribute__((guarded_by(all_shards))) = SIZE_MAX;
  std::uint64_t returned_parts_ __attribute__((guarded_by(all_shards))) = 0; // frees of parts of refused requests
};

} // namespace gpumem::detail
