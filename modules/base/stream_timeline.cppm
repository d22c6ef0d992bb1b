// The timeline of a stream: its epochs and events, and after which work of other streams it is ordered.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:stream_timeline;
import :cuda;
import :intrusive_list;
import :std;
import :stream_epochs;
import :stream_identity;
import :sync;

namespace gpumem::detail {

/// The streams after whose work one stream is ordered. Each entry has the index of another stream, and the newest epoch
/// of that other stream that comes before the work of the one stream. Small, and sorted by index.
export class vector_clock {
public:
  // Returns the newest epoch listed for the stream with this index; 0 if the list has none.
  epoch at(std::uint32_t index) const noexcept;
  void raise(std::uint32_t index, epoch newest);
  void join(vector_clock const& other);

private:
  struct entry {
    std::uint32_t index;
    epoch newest;
  };
  std::vector<entry> entries_;
};

/// Tells after which work of other streams the work of one stream, the owner, is ordered. Any thread.
export class stream_order {
public:
  // Returns whether work enqueued on the owner from now on comes after epoch `e` of the stream with that index.
  bool is_after(std::uint32_t index, epoch e) const;
  // Notes that the owner now waits for an event that ended epoch `e` of the stream with that index. `order`: the
  // snapshot() of that other stream when the event was recorded; the owner is ordered after these epochs too. Called
  // after the driver has accepted the wait.
  void add(std::uint32_t index, epoch e, vector_clock const& order);
  vector_clock snapshot() const;
  void clear() noexcept;

private:
  mutable sync::mutex mutex_;
  vector_clock clock_ GPUMEM_GUARDED_BY(mutex_);
};

export class timeline_registry;
export class timeline_store;

// Why each free on a mortal stream records an event: too many frees that no event covers keep memory of dead streams,
// or of closed pools. timeline_registry.cpp and deferred_release.cpp have the limits.
export enum class uncovered_memory : std::uint8_t { dead_streams = 1, closed_pools = 2 };
// The reasons that hold now, as a sum.
inline constinit std::atomic<std::uint8_t> uncovered_memory_seen{0};
// Notes that a reason holds, or holds no more.
export void note_uncovered_memory(uncovered_memory memory, bool much) noexcept;
// Called after the event that cover_request() requests was recorded; initially null.
inline constinit std::atomic<void (*)() noexcept> on_requested_recorded{nullptr};

// The library's knowledge of one stream. It is made of parts: the stream's identity, its epochs, its order after other
// streams, and its events. Never destroyed, since pools tag freed memory with an epoch and a pointer to the timeline of
// its stream. The timeline of a dead stream is reused for a later stream, with the same index and later epochs: all
// epochs of the dead stream are complete by then. Any thread.
//
// An event of a mortal stream can be recorded only inside a call that gets the handle, and each call may be the last.
// So its timeline has a last event beside the events in the ring.
//
// Without set_default_stream(), handle 0 is the thread's per-thread stream or the legacy stream. An event on the legacy
// stream would be a barrier between all blocking streams. So the events of handle 0 are recorded on the per-thread
// stream. An event there waits for all work that any thread has enqueued on the legacy stream so far (as seen on an
// H200).
class stream_timeline : public stream_identity {
public:
  // `last`: an event of the context if the stream is or may become mortal; otherwise null.
  stream_timeline(stream_kind kind, std::uint32_t index, std::uint64_t id, int device, CUcontext context,
                  CUstream handle, pooled_event* last);

  // Adds or removes one promise that the handle lives. Called under the lock of the timeline_registry.
  void adopt(bool promised) noexcept;

  // The three questions about epochs that most callers ask; epochs() has the others.
  inline epoch current_epoch() const noexcept { return epochs_.current(); }
  inline bool completed(epoch e) const noexcept { return epochs_.completed(e); }
  inline epoch newest_recorded() const noexcept { return epochs_.newest_recorded(); }
  inline stream_epochs& epochs() noexcept { return epochs_; }

  // Returns whether work enqueued on this stream from now on is ordered after the epoch of the other stream.
  bool ordered_after(stream_timeline const& other, epoch e) const;
  inline stream_order& order() noexcept { return order_; }

  // These two functions record an event on the handle that the call got, or that the stream owns. record_at_free()
  // records a precise event, which ends an epoch of its own. The function returns that epoch, with which the caller
  // tags the freed block. record_later() records a late event, which ends the current epoch, and returns that epoch.
  // On the null and legacy streams record_at_free() records a late event too. Both return 0 if nothing could be
  // recorded: a capture, no room, no spare event, an error. They allocate no host memory.
  inline epoch record_at_free(CUstream caller_handle) noexcept { return record(caller_handle, true); }
  inline epoch record_later(CUstream caller_handle) noexcept { return record(caller_handle, false); }

  // Ends a use on a mortal stream: returns the epoch with which the caller tags the memory. Records the last event at
  // each of the stream's first 64 frees, then more and more rarely, down to every 64th free and every 64 MiB. Records
  // always if `always`, or while uncovered_memory_seen is not 0. `caller_handle`: the handle, if the call got it;
  // without it no event is recorded. Allocates no host memory. The epoch is read before the free is counted. So the
  // event after which this free no longer counts as uncovered also covers this epoch.
  [[gnu::always_inline]] inline epoch end_use(std::optional<CUstream> caller_handle, std::size_t bytes,
                                              bool always) noexcept {
    auto const e = epochs_.current();
    bool const due = always || uncovered_memory_seen.load(std::memory_order_relaxed) != 0;
    if (due || !epochs_.count_silent(bytes)) [[unlikely]]
      return end_use_with_event(e, caller_handle, bytes);
    return e;
  }

  // Ends a use on a mortal stream that captures, where no event can be recorded: returns the epoch with which the
  // caller tags the memory, and requests that the next call outside the capture records an event. If there is no such
  // call, the use ends when the stream is known to be dead. So the use does not count as an uncovered free.
  epoch end_use_in_capture() noexcept;
  // Notes that a free in a capture has ended a use of memory that was allocated for this very stream. Its work before
  // the capture may be on that memory, so enter_capture() publishes nothing before the next event.
  inline void owe_event() noexcept { owed_.store(epochs_.current(), std::memory_order_relaxed); }
  // Notes that a call got the handle of this mortal stream in the capture with this id. The call before may have been
  // in another capture. Then the handle can belong to another stream by now, and the driver cannot be asked. If so, and
  // if no free outside captures waits for an event, publishes that all uses so far are complete. Called under the lock
  // of the timeline_registry.
  void enter_capture(std::uint64_t capture) noexcept;
  // Notes that the stream is dead. If no free waits for an event, publishes that all uses are complete, those that an
  // object ends later with this timeline included. Called under the lock of the timeline_registry.
  void end() noexcept;
  // Returns whether the stream is known to be dead, and the timeline not reused yet.
  inline bool is_dead() const noexcept { return dead_.load(std::memory_order_relaxed); }

  // Records the last event. Returns false if none was recorded. `final`: the thread of this default stream ends, so
  // that nothing is enqueued on the stream any more. The event then covers later frees as well.
  bool record_last_event(CUstream caller_handle, bool final) noexcept;

  // Lets an event cover all frees so far, now or later. Records a late event if it may use a handle: `caller_handle`,
  // or the handle of a stream which is known to live. For the legacy stream, asks the driver whether it is idle.
  // Otherwise requests that the next free with the handle records an event.
  void cover(std::optional<CUstream> caller_handle) noexcept;
  // Requests an event that covers all frees so far, because their memory can be reused or given back only after it. The
  // next call of any kind that gets the stream's handle calls record_requested().
  inline request_flag& cover_request() noexcept { return cover_request_; }
  // Records the event that cover_request() asks for, drops the request, and calls `on_requested_recorded`. Returns
  // false, and keeps the request, if no event was recorded, for instance since the stream captures.
  bool record_requested(CUstream caller_handle) noexcept;
  // Requests an event of the current epoch, so that other streams can reuse the memory that was freed in it. The next
  // free that gets the stream's handle records the event.
  inline request_flag& event_request() noexcept { return event_request_; }

  // Queries the open events (those not known to be complete) and publishes which epochs are complete. Returns the time
  // at which the oldest event that stays open was recorded. Returns null if none stays open, if another thread polls or
  // records, or if the device is lost or the driver gone.
  std::optional<sync::time_point> poll() noexcept;
  // Returns whether an event is open.
  bool has_event() const noexcept;
  // Returns whether the stream is behind the host: at the last poll its oldest event was still open, although it had
  // been recorded more than 5 us before.
  inline bool is_behind() const noexcept { return behind_.load(std::memory_order_relaxed); }
  // Returns whether a free or a use of this mortal stream has no event yet.
  inline bool lacks_event() const noexcept {
    auto const captured = captured_use_.load(std::memory_order_relaxed);
    return epochs_.uncovered_frees() > 0 || (newest_recorded() < captured && !completed(captured));
  }
  // Returns whether polling, or cover() without a handle, can show that the epoch is complete.
  inline bool can_complete(epoch e) const noexcept {
    return newest_recorded() >= e || owns_handle() || kind() == stream_kind::legacy || completed(e);
  }
  // Waits on the host until the epoch is complete, without a time limit. Returns false immediately if polling cannot
  // show that.
  bool wait(epoch e) noexcept;

  // Returns whether the epoch has a precise event that is still open.
  bool waitable(epoch e) const noexcept;
  // Makes the waiting stream wait for the precise event of the epoch, then publishes the order. Returns false if no
  // such event is open, if the waiting stream is handle 0, or on an error of the driver.
  bool insert_wait(stream_timeline& waiting_timeline, CUstream caller_handle, epoch e) noexcept;

  // Makes spare events, so that records need no allocation; throws std::bad_alloc, cuda_error.
  inline void prepare() {
    if (!spares_low.load(std::memory_order_relaxed) && prepared_.load(std::memory_order_relaxed)) [[likely]]
      return;
    prepared_.store(true, std::memory_order_relaxed);
    if (context()) make_spare_events(context()); // the host's timeline has no context
  }

  // These two functions count the objects that keep this timeline for later: to free memory with it, or to wait for one
  // of its events. While an object keeps it, the timeline is not reused for another stream. Timelines that are never
  // reused count nothing.
  inline void add_keeper() noexcept {
    if (may_die_) keepers_.fetch_add(1, std::memory_order_relaxed);
  }
  inline void remove_keeper() noexcept {
    if (may_die_) keepers_.fetch_sub(1, std::memory_order_release);
  }
  // Returns whether the timeline of a dead stream may be reused: events cover all frees, all are complete, and no
  // object keeps it. Polls. Called under the lock of the timeline_registry.
  bool is_reusable() noexcept;
  // Makes this the timeline of another stream. That stream has no timeline yet, and belongs to the same context.
  void rebind(stream_kind kind, std::uint64_t id, CUstream handle) noexcept;

private:
  friend class intrusive_list<stream_timeline>;
  friend class timeline_registry; // these two use only links_
  friend class timeline_store;
  // `promised`: the handle is valid only while its owner promises that it lives. If the promise has ended meanwhile,
  // records nothing and returns 0.
  epoch record(CUstream handle, bool precise, bool promised = false) noexcept;
  epoch end_use_with_event(epoch e, std::optional<CUstream> caller_handle, std::size_t bytes) noexcept;

  // These small members share a cache line with the identity. Every free reads that line, and few calls write to it.
  request_flag event_request_;
  request_flag cover_request_;
  std::atomic<bool> prepared_; // false once the ring has used its last spare event: the next allocation makes spares
  bool const may_die_;
  stream_epochs epochs_; // begins a cache line
  alignas(64) mutable sync::mutex events_mutex_;
  event_ring ring_ GPUMEM_GUARDED_BY(events_mutex_);
  last_event last_ GPUMEM_GUARDED_BY(events_mutex_);
  // The epoch of the last event, once no more work is enqueued on the stream; before that 0.
  std::atomic<epoch> final_epoch_{0};
  std::atomic<epoch> captured_use_{0}; // the newest epoch that end_use_in_capture() has returned
  std::atomic<bool> behind_{false};
  std::atomic<int> keepers_{0};
  std::atomic<epoch> owed_{0}; // see owe_event()
  std::atomic<bool> dead_{false};
  std::uint64_t capture_ = 0; // see enter_capture(); guarded by the lock of the timeline_registry
  stream_order order_;
  list_links<stream_timeline> links_;
};

} // namespace gpumem::detail
