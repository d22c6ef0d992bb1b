// Detects that nothing is granted or freed while requests wait for memory.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stall_detector;
import :std;
import :sync;

namespace gpumem::detail {

/// Tells since when nothing has been granted or freed while requests wait. Guarded by the locks of all shards.
export class stall_detector {
public:
  /// After `timeout` without a grant or a free, the requests that wait count as stalled; 0: never.
  explicit stall_detector(sync::duration timeout) noexcept : timeout_{timeout} {}

  /// Returns whether there is a timeout.
  bool enabled() const noexcept;
  /// Called when the first request begins to wait.
  void begin() noexcept { quiet_since_ = sync::now(); }
  /// Counts a request that was granted while others wait, or that ended so that others can go on.
  void count_grant() noexcept { ++grants_; }
  /// Notes that this many changes are no sign of progress: requests of several parts gave back parts of their memory.
  void disregard(std::uint64_t changes) noexcept { vain_ += changes; }
  /// Returns when the requests count as stalled if nothing is granted or freed until then. `changes`: the pool's count
  /// of frees and of other changes that may help a request. A change since the last call counts as if it were made now,
  /// so that no free has to read the clock.
  sync::time_point stalls_at(std::uint64_t changes) noexcept;
  /// Returns whether the requests count as stalled now.
  bool has_stalled(std::uint64_t changes) noexcept;

private:
  sync::duration const timeout_;
  std::uint64_t grants_ = 0;
  std::uint64_t vain_ = 0;
  std::uint64_t signs_ = 0;        // number of grants and frees at the last call
  sync::time_point quiet_since_{}; // time of the last call that saw a new grant or free
};

} // namespace gpumem::detail
