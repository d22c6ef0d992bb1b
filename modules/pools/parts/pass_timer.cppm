// When the library thread makes its next pass over a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pass_timer;
import :admission;
import :backoff;
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
  void schedule() noexcept;
  /// Posts a pass for `when`, but at least a millisecond from now: the work before it may take time.
  void schedule_at(sync::time_point when) noexcept;
  /// Withdraws a posted pass. Returns false if a pass runs, or is about to.
  bool cancel() noexcept;
  void begin_pass() noexcept;
  void end_pass() noexcept { running_ = false; }

  /// A pass has found something new for requests that wait.
  void restart_waiting() noexcept { waiting_pause_.restart(); }
  /// A pass has found that streams still use the memory that is to go back. `open`: an event can show their completion.
  void count_idle(bool open) noexcept { gives_up_ = !open || idle_pause_.count() >= tuning::max_idle_passes; }
  /// A free has left memory that is to go back.
  void restart_idle() noexcept {
    idle_pause_.restart();
    gives_up_ = false;
  }
  /// Whether the passes for memory that is to go back end, until the next such free.
  bool gives_up() const noexcept { return gives_up_; }

private:
  bool may_post(bool soon) noexcept;

  timer& pass_;
  admission const& requests_;
  bool queued_ = false;
  bool late_ = false; // an earlier pass may replace the posted one
  bool running_ = false;
  bool gives_up_ = false;
  backoff waiting_pause_{tuning::max_pass_pause}; // by passes that found nothing new for requests that wait
  backoff idle_pause_{tuning::max_pass_pause};    // by passes that found memory still in use
};

} // namespace gpumem::detail
