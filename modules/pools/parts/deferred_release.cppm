// The closed pools whose memory cannot go back to the upstream yet.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:deferred_release;
import :intrusive_list;
import :std;
import :stream_timeline;
import :timer;

namespace gpumem::detail {

/// Base of objects that give the memory of a closed pool back to its upstream. Each expiry of the timer is a pass: the
/// library thread tries once to give the memory back. If no event was recorded after a use of the memory, the use
/// cannot be seen complete, and passes could go on for ever. So the pool then goes to a list of deferred releases, and
/// its passes start again after an event was recorded. A pool that outlives the driver is leaked on purpose; the list
/// keeps it reachable.
///
/// If closed pools keep too much memory whose uses no event covers, each free on a mortal stream records an event. So
/// the pools that close afterwards keep none.
export class deferred_release : public timer {
public:
  /// Empties the list, and starts a pass of each pool on it. Called when a requested event was recorded, and when a
  /// pool is made or ends. Any thread.
  static void retry_releases() noexcept;
  /// Returns whether closed pools have memory. Any thread.
  static bool any_closed() noexcept;
  /// Gives back memory of closed pools whose uses the host has seen complete, for a request that found no memory on the
  /// device. `device`: the ordinal; -1: the upstream has no device. Waits while another thread gives such memory back,
  /// for at most `tuning::max_host_wait`. Returns whether any memory went back. The caller holds no lock of a pool.
  static bool give_back_complete(int device) noexcept;

protected:
  /// The result of give_back(): no memory whose uses are complete; such memory, which it has given back; or memory that
  /// another thread is giving back.
  enum class given_back : std::uint8_t { nothing, memory, by_other_thread };

  ~deferred_release() = default;
  /// Adds this closed pool to those that give_back_complete() visits, unless it was added before.
  void list_closed(int device) noexcept;
  /// Ends that. Waits while another thread visits the pool. Called before the pool is destroyed, without a lock.
  void unlist_closed() noexcept;
  /// Puts this object on the list. Called when the driver is gone, or in a pass. That pass must not start the timer.
  void defer_release() noexcept;
  /// Requests an event on each stream of streams_without_event(), and counts the bytes that the closed pool keeps as
  /// uncovered if there is such a stream. An event that was recorded before the request starts no pass. So after
  /// defer_release() the caller checks once more whether memory can go back.
  void request_events(std::size_t keep) noexcept;

private:
  friend class closed_pools;
  friend class intrusive_list<deferred_release>;
  /// Returns the streams with a use of the pool's memory after which no event was recorded. Throws std::bad_alloc.
  virtual std::vector<stream_timeline*> streams_without_event() = 0;
  /// Gives back memory whose uses are complete, while the library thread may do the same.
  virtual given_back give_back() noexcept = 0;

  deferred_release* next_deferred_ = nullptr;
  // Guarded by the mutex of the list of closed pools.
  list_links<deferred_release> links_;
  std::size_t uncovered_ = 0;
  std::uint64_t visited_ = 0; // number of the newest call of give_back_complete() that has visited the pool
  int visitors_ = 0;
  int device_ = -1;
  bool listed_ = false;
};

/// Returns whether the process is exiting, so that the library thread must end. The first call registers a function
/// that notes the exit.
export bool process_is_exiting() noexcept;

} // namespace gpumem::detail
