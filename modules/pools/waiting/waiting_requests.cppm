// The requests that wait for a pool's memory, and the facts that decide whether one of them may go on.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:waiting_requests;
import :deferred_frees;
import :pool_parts;
import :std;
import :waiter;

namespace gpumem::detail {

/// The waiting requests of one pool, and what each of them lacks. Guarded by the locks of all shards.
export class waiting_requests {
public:
  /// Refers to both.
  waiting_requests(pool_parts& parts, deferred_frees const& deferred) noexcept
      : queue{parts.options.max_overtakes}, parts_{parts}, deferred_{deferred} {}

  waiter_list queue;

  /// Returns the bytes that are free or could be reserved, less those set aside for requests other than `its_own`.
  std::size_t headroom(std::size_t its_own = 0) const noexcept;
  bool fits(waiter const& item) const noexcept;
  /// Rounds as for a request for which the pool cannot grow: only small sizes are rounded to a size class.
  static std::size_t rounded(std::size_t bytes) noexcept;
  static std::size_t rounded(waiter const& item) noexcept;
  /// Whether the request can no longer be met.
  bool ends(waiter const& item) const noexcept;
  /// Whether nothing is left for which the request could wait.
  bool waits_for_nothing(waiter const& item) const noexcept;
  /// Whether the pool has neither handle, nor live block, nor request.
  bool is_pool_unused() const noexcept;
  /// Whether a free inside a capture waits for a call.
  inline bool has_deferred_frees() const noexcept { return deferred_.any(); }

  /// Returns a count of changes that may let a refused request go on: it grows with each free and each promoted range.
  std::uint64_t change_count() const noexcept;
  /// The same for this request. Parts that requests of several blocks give back do not count for such requests.
  std::uint64_t change_count(waiter const& item) const noexcept;
  /// The count without the parts that requests of several blocks have given back.
  std::uint64_t frees_of_others() const noexcept { return change_count() - returned_parts_; }
  void count_returned_parts(std::uint64_t changes) noexcept { returned_parts_ += changes; }

  /// The upstream has refused to go beyond these reserved bytes, as long as requests wait.
  void set_upstream_limit(std::size_t reserved) noexcept { upstream_limit_ = reserved; }
  void clear_upstream_limit() noexcept { upstream_limit_ = SIZE_MAX; }

private:
  bool is_held() const noexcept;

  pool_parts& parts_;
  deferred_frees const& deferred_;
  std::size_t upstream_limit_ = SIZE_MAX;
  std::uint64_t returned_parts_ = 0; // frees of parts of refused requests
};

} // namespace gpumem::detail
