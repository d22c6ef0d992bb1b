// Decisions of the library thread for requests that wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:progress_monitor;
import :deadlock_monitor;
import :pool_parts;
import :pressure_list;
import :shard_roles;
import :stall_detector;
import :std;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

/// Decides what a pass of the library thread does for requests that wait: it polls events, calls pressure callbacks, or
/// makes the deadlock_monitor look for requests that must end. Guarded by the locks of all shards.
export class progress_monitor {
public:
  /// Keeps references to both arguments.
  progress_monitor(pool_parts& parts, waiting_requests& waiting) noexcept
      : stall{parts.options.stall_timeout}, parts_{parts}, waiting_{waiting} {}

  pressure_list pressure __attribute__((guarded_by(all_shards)));
  stall_detector stall __attribute__((guarded_by(all_shards)));

  /// Returns whether streams still use free memory. If they did at the last call and no longer do, adds 1 to the pool's
  /// count of changes, so that waiting requests try again.
  [[clang::requires_capability(one_shard, all_shards)]] bool update_work_pending() noexcept;
  /// Returns the next waiting request for which a poll may help, because enough bytes are free or could be reserved;
  /// null if there is none. In a hardened pool, and while frees in a graph capture are still to be done, returns the
  /// first waiting request. While requests wait, only the library thread polls.
  [[clang::requires_capability(one_shard, all_shards)]] waiter* next_to_poll_for() const noexcept;
  /// Returns what the deadlock_monitor sees while `first`, the first request without a turn, waits.
  [[clang::requires_capability(one_shard, all_shards)]] place_state state(waiter const& first) noexcept;
  /// Returns the bytes that waiting requests lack, beyond those that are free or could be reserved. If they lack none,
  /// the free bytes lie in pieces; then returns the bytes of the first request. Returns 0 if no request waits.
  [[clang::requires_capability(one_shard, all_shards)]] std::size_t wanted() const noexcept;
  /// If it is possible that all memory is held by work that waits itself, posts a pass, in which the deadlock_monitor
  /// looks. Cheap, because this function does not add up the bytes of each holder.
  [[clang::requires_capability(one_shard, all_shards)]] void schedule_look() noexcept;
  /// Called before the deadlock_monitor looks.
  [[clang::requires_capability(all_shards)]] void begin_look() noexcept { look_is_due_ = false; }
  /// Returns whether a pass of the library thread would have something to do.
  [[clang::requires_capability(one_shard, all_shards)]] bool needs_pass() noexcept;
  /// Posts a pass if the library thread has to poll, to call a pressure callback, or to look for a stall.
  [[clang::requires_capability(one_shard, all_shards)]] void schedule_poll() noexcept;
  /// Posts a pass for the time at which the waiting requests count as stalled.
  [[clang::requires_capability(one_shard, all_shards)]] void schedule_stall_check() noexcept;

private:
  [[clang::requires_capability(one_shard, all_shards)]] bool is_work_pending() const noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] bool needs_poll() noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] inline bool is_pressure_due() const noexcept {
    return pressure.due() && wanted() > 0;
  }

  pool_parts& parts_;
  waiting_requests& waiting_;
  bool look_is_due_ __attribute__((guarded_by(all_shards))) = false; // something has changed since the last look
  bool work_was_pending_ __attribute__((guarded_by(all_shards))) =
      false; // whether streams still used free memory at the last poll
};

} // namespace gpumem::detail
