// When the library thread makes its next pass over a pool.
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

/// Posts the passes of the library thread over one pool, one at a time. The pauses between them grow. Guarded by the
/// locks of all shards.
export class pass_timer {
public:
  /// Refers to both. `pass`: expires at each pass.
  pass_timer(timer& pass, admission const& requests) noexcept : pass_{pass}, requests_{requests} {}

  /// Posts a pass after a pause. The pause grows with the number of passes that found nothing new for requests that
  /// wait. If no request waits, it grows with the number of idle passes.
  [[clang::requires_capability(all_shards)]] void schedule() noexcept;
  /// Posts a pass for `when`, but at least a millisecond from now: the work before it may take time.
  [[clang::requires_capability(all_shards)]] void schedule_at(sync::time_point when) noexcept;
  /// Withdraws a posted pass. Returns false if a pass runs, or is about to.
  [[clang::requires_capability(all_shards)]] bool cancel() noexcept;
  [[clang::requires_capability(all_shards)]] void begin_pass() noexcept;
  [[clang::requires_capability(all_shards)]] void end_pass() noexcept { running_ = false; }

  /// A pass has found something new for requests that wait.
  [[clang::requires_capability(all_shards)]] void restart_waiting() noexcept { waiting_pause_.restart(); }
  /// A pass has found that streams still use the memory that is to go back. `open`: an event can show their completion.
  [[clang::requires_capability(all_shards)]] void count_idle(bool open) noexcept {
    gives_up_ = !open || idle_pause_.count() >= tuning::max_idle_passes;
  }
  /// A free has left memory that is to go back.
  [[clang::requires_capability(all_shards)]] void restart_idle() noexcept {
    idle_pause_.restart();
    gives_up_ = false;
  }
  /// Whether the passes for memory that is to go back end, until the next such free.
  [[clang::requires_capability(all_shards)]] bool gives_up() const noexcept { return gives_up_; }

private:
  [[clang::requires_capability(all_shards)]] bool may_post(bool soon) noexcept;

  timer& pass_;
  admission const& requests_;
  bool queued_ __attribute__((guarded_by(all_shards))) = false;
  bool late_ __attribute__((guarded_by(all_shards))) = false; // an earlier pass may replace the posted one
  bool running_ __attribute__((guarded_by(all_shards))) = false;
  bool gives_up_ __attribute__((guarded_by(all_shards))) = false;
  backoff waiting_pause_ __attribute__((guarded_by(all_shards))){
      tuning::max_pass_pause}; // by passes that found nothing new for requests that wait
  backoff idle_pause_
      __attribute__((guarded_by(all_shards))){tuning::max_pass_pause}; // by passes that found memory still in use
};

} // namespace gpumem::detail
