// A list of closed pools whose memory cannot go back to the upstream yet.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:deferred_release;
import :std;
import :stream_timeline;
import :timer;

namespace gpumem::detail {

/// Base of objects that give the memory of a closed pool back to its upstream. Each expiry of the timer is a pass: the
/// library thread tries once to give the memory back. If no event was recorded after a use of the memory, the use
/// cannot be seen complete, and passes could go on for ever. So the pool then goes to a list of deferred releases, and
/// its passes start again after an event was recorded. A pool that outlives the driver is leaked on purpose; the list
/// keeps it reachable.
export class deferred_release : public timer {
public:
  /// Empties the list, and starts a pass of each pool on it. Called when a requested event was recorded, and when a
  /// pool is made or ends. Any thread.
  static void retry_releases() noexcept;

protected:
  ~deferred_release() = default;
  /// Puts this object on the list. Called when the driver is gone, or in a pass. That pass must not start the timer.
  void defer_release() noexcept;
  /// Requests an event on each stream of streams_without_event(). Called after defer_release(). An event that was
  /// recorded before the request starts no pass, so the caller then checks once more whether memory can go back.
  void request_events() noexcept;

private:
  /// Returns the streams with a use of the pool's memory after which no event was recorded. Throws std::bad_alloc.
  virtual std::vector<stream_timeline*> streams_without_event() = 0;

  deferred_release* next_deferred_ = nullptr;
};

/// Returns whether the process is exiting, so that the library thread must end. The first call registers a function
/// that notes the exit.
export bool process_is_exiting() noexcept;

} // namespace gpumem::detail
