// Decides when the library thread makes its next pass over a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pass_timer;
import :admission;
import :backoff;
import :shard_roles;
import :std;
import :sync;
import :timer;
import :tuning;

namespace gpumem::detail {

/// Posts passes of the library thread, one at a time, with growing pauses. Guarded by the locks of all shards.
export class pass_timer {
public:
  /// Keeps references to both arguments. `pass`: the timer whose expiry is a pass.
  pass_timer(timer& pass, admission const& requests) noexcept : pass_{pass}, requests_{requests} {}

  /// Posts a pass after a pause. The pause grows with each pass that found no change for a waiting request. If no
  /// request waits, it grows with each pass that found memory still in use.
  [[clang::requires_capability(all_shards)]] void schedule() noexcept;
  /// Posts a pass for `when`, or for a millisecond from now if that is later.
  [[clang::requires_capability(all_shards)]] void schedule_at(sync::time_point when) noexcept;
  /// Cancels a posted pass. Returns false if a pass runs or is about to run.
  [[clang::requires_capability(all_shards)]] bool cancel() noexcept;
  [[clang::requires_capability(all_shards)]] void begin_pass() noexcept;
  [[clang::requires_capability(all_shards)]] void end_pass() noexcept { running_ = false; }

  /// Resets the pause, because a pass has found a change that may help a waiting request.
  [[clang::requires_capability(all_shards)]] void restart_waiting() noexcept { waiting_pause_.restart(); }
  /// Notes that a pass found memory that is to go back to the upstream, but is still in use. `open`: whether polling
  /// can show the end of these uses. If it cannot, or after many such passes, the timer gives up.
  [[clang::requires_capability(all_shards)]] void count_idle(bool open) noexcept {
    gives_up_ = !open || idle_pause_.count() >= tuning::max_idle_passes;
  }
  /// Notes that a free has left memory that is to go back to the upstream.
  [[clang::requires_capability(all_shards)]] void restart_idle() noexcept {
    idle_pause_.restart();
    gives_up_ = false;
  }
  /// Returns whether the timer has given up: no pass is posted for memory that is to go back, until restart_idle().
  [[clang::requires_capability(all_shards)]] bool gives_up() const noexcept { return gives_up_; }

private:
  [[clang::requires_capability(all_shards)]] bool may_post(bool soon) noexcept;

  timer& pass_;
  admission const& requests_;
  bool queued_ __attribute__((guarded_by(all_shards))) = false;
  bool late_ __attribute__((guarded_by(all_shards))) = false; // whether an earlier pass may replace the posted one
  bool running_ __attribute__((guarded_by(all_shards))) = false;
  bool gives_up_ __attribute__((guarded_by(all_shards))) = false;
  backoff waiting_pause_ __attribute__((guarded_by(all_shards))){
      tuning::max_pass_pause}; // grows with passes that found no change for a waiting request
  backoff idle_pause_ __attribute__((guarded_by(all_shards))){
      tuning::max_pass_pause}; // grows with passes that found memory still in use
};

} // namespace gpumem::detail
