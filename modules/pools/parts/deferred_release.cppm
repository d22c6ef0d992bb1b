// Closed pools that wait until their memory can go back, without keeping the library thread.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:deferred_release;
import :std;
import :stream_timeline;
import :timer;

namespace gpumem::detail {

/// Base of objects that give a closed pool's memory back, in passes of the library thread: each time the timer expires.
/// A pool whose memory no event covers may wait for ever, so it leaves that thread. A pool that outlives the driver is
/// leaked on purpose, and stays reachable.
export class deferred_release : public timer {
public:
  /// Starts a pass of each pool left behind. Called when a wanted event was recorded, and when a pool is made or ends.
  /// Any thread.
  static void retry_releases() noexcept;

protected:
  ~deferred_release() = default;
  /// Called in a pass, which must not start another one, or when the driver is gone.
  void defer_release() noexcept;
  /// Requests an event on each stream of streams_without_event(). Called after defer_release(). An event that was
  /// recorded just before starts no pass, so the caller then checks once more whether memory can go back.
  void request_events() noexcept;

private:
  /// Streams that keep memory without an event that covers it. Throws std::bad_alloc.
  virtual std::vector<stream_timeline*> streams_without_event() = 0;

  deferred_release* next_deferred_ = nullptr;
};

/// Whether the process is exiting: the library thread must come to an end. From the first call on that is noted.
export bool process_is_exiting() noexcept;

} // namespace gpumem::detail
