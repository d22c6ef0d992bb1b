// Decisions of the library thread for requests that wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:progress_monitor;
import :holder;
import :pool_parts;
import :pressure_list;
import :shard_roles;
import :stall_detector;
import :std;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

/// Watches the work that holds memory while requests wait for it. Decides whether a pass of the library thread polls,
/// calls functions that free memory, or ends a request so that others go on. Guarded by the locks of all shards.
export class progress_monitor {
public:
  /// Refers to both.
  progress_monitor(pool_parts& parts, waiting_requests const& waiting) noexcept
      : stall{parts.options.stall_timeout}, parts_{parts}, waiting_{waiting} {}

  holder_list holders;
  pressure_list pressure __attribute__((guarded_by(all_shards)));
  stall_detector stall __attribute__((guarded_by(all_shards)));

  /// Returns whether streams use free memory. The end of these uses counts as a change, whichever call has seen the
  /// work complete.
  [[clang::requires_capability(one_shard, all_shards)]] bool update_work_pending() noexcept;
  /// Returns the request that may lack only the completion of work, for which only the library thread polls; null if
  /// none.
  [[clang::requires_capability(one_shard, all_shards)]] waiter* next_to_poll_for() const noexcept;
  /// Returns the request that ends so that other requests can go on; null if none.
  [[clang::requires_capability(one_shard, all_shards)]] waiter* next_to_abort() noexcept;
  /// Returns the bytes for which requests wait and which they could not have now.
  [[clang::requires_capability(one_shard, all_shards)]] std::size_t wanted() const noexcept;
  /// Returns whether work that waits could hold all memory; does not add up the bytes of each holder.
  [[clang::requires_capability(one_shard, all_shards)]] bool may_stall() const noexcept;
  /// Whether the library thread has something to look at.
  [[clang::requires_capability(one_shard, all_shards)]] bool needs_pass() noexcept;
  /// Posts a pass if the library thread has to poll, to call a pressure callback, or to look for a stall.
  [[clang::requires_capability(one_shard, all_shards)]] void schedule_poll() noexcept;
  /// Posts a late pass for the time at which the requests count as stalled.
  [[clang::requires_capability(one_shard, all_shards)]] void schedule_stall_check() noexcept;

  /// Bytes of holders whose requests were preempted, until their work is rolled back.
  [[clang::requires_capability(all_shards)]] void add_preempted(std::size_t bytes) noexcept { preempted_ += bytes; }
  [[clang::requires_capability(all_shards)]] void subtract_preempted(std::size_t bytes) noexcept {
    preempted_ -= bytes;
  }

private:
  [[clang::requires_capability(one_shard, all_shards)]] bool is_work_pending() const noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] bool needs_poll() noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] inline bool is_pressure_due() const noexcept {
    return pressure.due() && wanted() > 0;
  }

  pool_parts& parts_;
  waiting_requests const& waiting_;
  std::size_t preempted_ __attribute__((guarded_by(all_shards))) = 0;
  bool work_was_pending_ __attribute__((guarded_by(all_shards))) =
      false; // whether streams still used free memory at the last poll
};

} // namespace gpumem::detail
