// Whether work that holds memory goes on while requests wait for it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stall_detector;
import :std;
import :sync;

namespace gpumem::detail {

/// Tells since when nothing has been granted or freed while requests wait. Guarded by the locks of all shards.
export class stall_detector {
public:
  /// After `timeout` without a sign the requests count as stalled; 0: never.
  explicit stall_detector(sync::duration timeout) noexcept : timeout_{timeout} {}

  /// Whether requests can count as stalled.
  bool enabled() const noexcept;
  /// The first request begins to wait.
  void begin() noexcept { quiet_since_ = sync::now(); }
  /// A request was granted while others wait, or ended so that others can go on.
  void count_grant() noexcept { ++grants_; }
  /// This part of the count of changes is no sign: requests of several parts returned it.
  void disregard(std::uint64_t changes) noexcept { vain_ += changes; }
  /// Returns when the requests count as stalled if nothing is granted or freed until then. `changes`: the count of
  /// changes. A change since the last call counts as one of now, so that no free has to read the clock.
  sync::time_point stalls_at(std::uint64_t changes) noexcept;
  /// Whether they count as stalled now.
  bool has_stalled(std::uint64_t changes) noexcept;

private:
  sync::duration const timeout_;
  std::uint64_t grants_ = 0;
  std::uint64_t vain_ = 0;
  std::uint64_t signs_ = 0;        // of work that goes on, at the last call
  sync::time_point quiet_since_{}; // no sign was new
};

} // namespace gpumem::detail
