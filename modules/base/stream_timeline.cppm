// The timeline of one stream: its identity, its epochs and events, and the streams that it is ordered after.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_timeline;
import :cuda;
import :std;
import :sync;
import :tuning;

namespace gpumem {

namespace extend {
/// A number that grows with each event recorded on a stream: an event of epoch e covers all frees of epochs up to e.
export using epoch = std::uint64_t;
} // namespace extend

namespace detail {

class stream_timeline;

// The streams that one stream is ordered after: for each, by its dense index, the newest such epoch. Small and sorted.
class vector_clock {
public:
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

// A CUDA event from a pool per context; other streams reuse it after its return.
struct pooled_event {
  CUevent handle = nullptr;
  CUcontext context = nullptr;
  pooled_event* next = nullptr;
};

// Returns a spare event of the context; creates one if there is none. Throws cuda_error, std::bad_alloc.
pooled_event* take_event(CUcontext context);
// Returns a spare event of the context; null if there is none. No allocation, no driver call.
pooled_event* take_spare_event(CUcontext context) noexcept;
void give_event(pooled_event* event) noexcept;
inline constinit std::atomic<bool> spares_low{true};
// Set once dead streams have left too many frees that no event covers (timeline_registry.cpp has the limits). From then
// on each free on a mortal stream records an event.
inline constinit std::atomic<bool> lost_events_seen{false};
// Called after an event was recorded that request_cover() has asked for; initially null.
inline constinit std::atomic<void (*)() noexcept> on_requested_recorded{nullptr};

enum class stream_kind : std::uint8_t {
  own,        // made by gpumem, never destroyed
  adopted,    // its owner has promised that it lives
  legacy,     // cudaStreamLegacy of a device
  foreign,    // a stream that may die at any time: its handle is used only inside a call that gets it
  per_thread, // cudaStreamPerThread of a thread
  null,       // handle 0 of one thread: which stream that is depends on how the caller was compiled
  host,       // the host itself: memory that it frees is not in use, memory that it gets it may use at once
};

// Never destroyed, since pools keep pointers to it as tags. The timeline of a dead stream is reused for a later stream,
// with the same index and later epochs: all epochs of the dead stream are complete by then. Any thread.
//
// An event is *precise* for a block if it was recorded inside the call that freed the block; other streams may wait for
// it. Its epoch tags no other block. Any other event is *late*: it also covers work enqueued after the free, which may
// depend on the very stream that would wait, so it may only be queried. Events of the null and legacy streams also
// cover work of other streams, and are late for every block.
//
// An event of a *mortal* stream (foreign, per_thread, null) can be recorded only inside a call that gets the handle,
// and each call may be the last. So its timeline has one more event, the last event, which frees record again and
// again: it is late, and needs neither room in the ring nor a spare event.
//
// Without set_default_stream(), handle 0 is the thread's per-thread stream or the legacy stream. An event on the legacy
// stream would be a barrier between all blocking streams. So events of such a timeline are recorded on the per-thread
// stream. That waits for all work that any thread has enqueued on the legacy stream so far (as seen on an H200).
class stream_timeline {
public:
  // `last`: an event of the context if the stream is or may become mortal; otherwise null.
  stream_timeline(stream_kind kind, std::uint32_t index, std::uint64_t id, int device, CUcontext context,
                  CUstream handle, pooled_event* last);
  stream_timeline(stream_timeline const&) = delete;
  stream_timeline& operator=(stream_timeline const&) = delete;

  inline stream_kind kind() const noexcept { return kind_.load(std::memory_order_relaxed); }
  inline std::uint32_t index() const noexcept { return index_; }
  // Returns the driver's id, which it never gives to another stream; 0 for the legacy stream and for handle 0.
  inline std::uint64_t id() const noexcept { return id_.load(std::memory_order_acquire); }
  inline int device() const noexcept { return device_; }
  inline CUcontext context() const noexcept { return context_; }
  // Whether the handle may be used outside a call that gets it.
  inline bool owns_handle() const noexcept { return kind() <= stream_kind::adopted; }
  inline bool is_mortal() const noexcept { return kind() >= stream_kind::foreign && kind() <= stream_kind::null; }
  inline CUstream handle() const noexcept { return handle_.load(std::memory_order_relaxed); }
  // Adds or removes one promise that the handle lives. Under the registry's lock.
  void adopt(bool promised) noexcept;
  inline int priority() const noexcept { return priority_; }
  void set_priority(int priority) noexcept { priority_ = priority; }
  // Whether the stream captures, if the capture was begun through gpumem; only the driver knows of others.
  inline bool capturing() const noexcept { return capturing_.load(std::memory_order_relaxed); }
  void set_capturing(bool on) noexcept { capturing_.store(on, std::memory_order_relaxed); }

  // Returns the epoch of memory that is freed now.
  inline epoch current_epoch() const noexcept { return now_.load(std::memory_order_acquire); }

  // Whether the host has seen all work of the epoch complete.
  inline bool completed(epoch e) const noexcept { return completed_.load(std::memory_order_acquire) >= e; }

  // Whether work enqueued on this stream from now on is ordered after the epoch of the other stream.
  bool ordered_after(stream_timeline const& other, epoch e) const;

  // Record an event on the handle that the call got, or that the stream owns. record_at_free(): a precise event; closes
  // an epoch of its own and returns it, and the caller tags the block that it frees with it. record_later(): a late
  // event; closes the current epoch and returns it. 0: nothing could be recorded (a capture, no room, no spare event,
  // an error). Allocate no host memory.
  inline epoch record_at_free(CUstream caller_handle) noexcept { return record(caller_handle, true); }
  inline epoch record_later(CUstream caller_handle) noexcept { return record(caller_handle, false); }

  // Ends a use on a mortal stream: returns the epoch with which the caller tags the memory. Records the last event at
  // each of the stream's first 64 frees, then more and more rarely, down to every 64th free and every 64 MiB. Records
  // always if `always`, or once lost_events_seen is set. `caller_handle`: the handle, if the call got it; without it no
  // event is recorded. Threads that free on one stream at the same time may lose counts of each other. Allocates no
  // host memory. The epoch is read before the counts change, and a record clears the counts before it closes the epoch:
  // a free that no event covers is always counted.
  [[gnu::always_inline]] inline epoch end_use(std::optional<CUstream> caller_handle, std::size_t bytes,
                                              bool always) noexcept {
    auto const e = current_epoch();
    auto const frees = uncovered_frees() + 1;
    auto const sum = uncovered_bytes() + bytes;
    bool const due = frees > silent_frees_.load(std::memory_order_relaxed) || sum >= tuning::max_silent_bytes ||
                     always || lost_events_seen.load(std::memory_order_relaxed);
    if (due) [[unlikely]]
      return end_use_with_event(e, caller_handle, bytes);
    uncovered_frees_.store(frees, std::memory_order_relaxed);
    uncovered_bytes_.store(sum, std::memory_order_relaxed);
    return e;
  }

  // Records the last event. `final`: the thread of a default stream ends, so that nothing is enqueued on the stream any
  // more; this event then covers later frees as well.
  void record_last_event(CUstream caller_handle, bool final) noexcept;

  // Returns the stream on which events are recorded for a call that got `caller_handle`.
  CUstream recorded_on(CUstream caller_handle) const noexcept;
  // For the legacy stream, whose handle never dies: asks the driver whether the stream is idle, and publishes that.
  // Asks nothing while a blocking stream captures, since that would end the capture. A capture that another thread
  // begins at the same moment is not seen.
  void query_legacy() noexcept;

  // Count the objects outside the pools that keep this timeline, to free with it or to wait for one of its events.
  // Timelines that are never reused for another stream count nothing.
  inline void retain() noexcept {
    if (last_event_) retained_.fetch_add(1, std::memory_order_relaxed);
  }
  inline void release() noexcept {
    if (last_event_) retained_.fetch_sub(1, std::memory_order_release);
  }

  // Whether the timeline of a dead stream may be reused: events cover all frees, all are complete, and no object keeps
  // it. Polls. Under the registry's lock.
  bool is_reusable() noexcept;
  // Return the frees and bytes that no event covers; for a dead stream no event ever will.
  inline std::uint32_t uncovered_frees() const noexcept { return uncovered_frees_.load(std::memory_order_relaxed); }
  inline std::size_t uncovered_bytes() const noexcept { return uncovered_bytes_.load(std::memory_order_relaxed); }
  // Makes this the timeline of another stream of the same context, which has not been used yet.
  void rebind(stream_kind kind, std::uint64_t id, CUstream handle) noexcept;
  // The next timeline in a list of the registry.
  stream_timeline* next = nullptr;

  // Covers all frees so far. Records a late event if it may use a handle: `caller_handle`, or the stream's own. Queries
  // the legacy stream. Otherwise requests an event of the next free.
  void cover(std::optional<CUstream> caller_handle) noexcept;
  // Whether polling, or cover() without a handle, can show that the epoch is complete.
  inline bool can_complete(epoch e) const noexcept {
    return newest_recorded() >= e || owns_handle() || kind() == stream_kind::legacy || completed(e);
  }

  // Requests an event that covers all frees so far, because memory waits for it. The next call of any kind that gets
  // the stream's handle records it, and then calls `on_requested_recorded`.
  inline void request_cover() noexcept { cover_requested_.store(true, std::memory_order_relaxed); }
  inline bool cover_requested() const noexcept { return cover_requested_.load(std::memory_order_relaxed); }
  void record_requested(CUstream caller_handle) noexcept;

  // Requests an event of the current epoch for another stream. The next free that gets the stream's handle records it.
  inline void request_event() noexcept { event_requested_.store(true, std::memory_order_relaxed); }
  inline bool event_requested() const noexcept { return event_requested_.load(std::memory_order_relaxed); }

  // Counts frees since the last event; true if an event is due, at 1024 frees or `max_bytes`.
  bool count_unrecorded(std::uint32_t frees, std::size_t bytes, std::size_t max_bytes) noexcept;

  // Queries events and publishes what is complete. Returns the time at which the oldest open event was recorded; null
  // if there is none, another thread polls or records, or the device is lost or the driver gone.
  std::optional<sync::time_point> poll() noexcept;
  bool has_event() const noexcept;
  // Whether the oldest event was open at the last poll although it was recorded 5 us before: the stream's work takes
  // longer than the host takes to come back.
  inline bool is_behind() const noexcept { return behind_.load(std::memory_order_relaxed); }
  // Returns the newest epoch with an event, complete or not.
  inline epoch newest_recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }

  // Waits on the host until the epoch is complete, without a time limit; false at once if polling cannot show that.
  bool wait(epoch e) noexcept;

  // Whether the epoch has a precise event that is still open.
  bool waitable(epoch e) const noexcept;

  // Makes the waiting stream wait for the precise event of the epoch, then publishes the order. False if no such event
  // is open, if the waiting stream is handle 0, or on an error of the driver.
  bool insert_wait(stream_timeline& waiting, CUstream caller_handle, epoch e) noexcept;

  // Notes that the host has seen all work up to and including the epoch complete.
  void publish_completed(epoch e) noexcept;

  // For events of the user: advance_epoch() closes the current epoch before the record, add_dependency() notes an order
  // after the driver has taken the wait.
  inline epoch advance_epoch() noexcept { return now_.fetch_add(1, std::memory_order_acq_rel); }
  void add_dependency(std::uint32_t index, epoch e, vector_clock const& before);
  vector_clock snapshot() const;

  // Makes spare events, so that records need no allocation; throws std::bad_alloc, cuda_error.
  inline void prepare() {
    if (spares_low.load(std::memory_order_relaxed) || !prepared_.load(std::memory_order_relaxed)) [[unlikely]]
      prepare_events();
  }

private:
  struct recorded_event {
    epoch covers = 0;
    pooled_event* event = nullptr;
    bool waitable = false;
    sync::time_point recorded = {};
  };
  static constexpr std::size_t max_events = 64;

  void prepare_events();
  // When it takes the stream's last own event, the next allocation makes spares again.
  pooled_event* acquire_event() noexcept __attribute__((requires_capability(events_mutex_)));
  void return_event(pooled_event* event) noexcept __attribute__((requires_capability(events_mutex_)));
  // `promised`: the handle lives by its owner's promise. If that has ended meanwhile, records nothing and returns 0.
  epoch record(CUstream handle, bool precise, bool promised = false) noexcept;
  inline recorded_event& at(std::size_t i) noexcept __attribute__((requires_capability(events_mutex_))) {
    return ring_[(first_ + i) % max_events];
  }
  inline recorded_event const& at(std::size_t i) const noexcept __attribute__((requires_capability(events_mutex_))) {
    return ring_[(first_ + i) % max_events];
  }
  recorded_event const* find_waitable(epoch e) const noexcept __attribute__((requires_capability(events_mutex_)));
  static bool complete(recorded_event const& one) noexcept;
  // Whether the stream captures, so that its events belong to a graph; true also on an error.
  bool captures(CUstream caller_handle) const noexcept;
  // Queries events, publishes what is complete and returns the complete events.
  void retire_completed() noexcept __attribute__((requires_capability(events_mutex_)));
  // Called inside a relaxed_capture.
  void poll_last() noexcept __attribute__((requires_capability(events_mutex_)));
  // Records the last event again. Returns the epoch that it now covers; 0 if it could not be recorded.
  epoch record_again(CUstream caller_handle) noexcept __attribute__((requires_capability(events_mutex_)));
  epoch end_use_with_event(epoch e, std::optional<CUstream> caller_handle, std::size_t bytes) noexcept;
  // Notes that an event covers `frees` more frees, and sets how many silent ones may follow.
  void count_covered(std::uint32_t frees) noexcept __attribute__((requires_capability(events_mutex_)));
  // Discards the last event: a capture that began and ended during its record took it, so it covers nothing.
  void lose_last_event() noexcept __attribute__((requires_capability(events_mutex_)));
  inline void raise_recorded(epoch covers) noexcept {
    recorded_.store(std::max(covers, recorded_.load(std::memory_order_relaxed)), std::memory_order_release);
  }

  std::atomic<stream_kind> kind_;
  std::uint32_t const index_;
  std::atomic<std::uint64_t> id_;
  int const device_;
  CUcontext const context_;
  pooled_event* const last_event_; // null for streams that are never mortal
  std::atomic<CUstream> handle_;

  int priority_ = 0;
  int adoptions_ = 0;
  std::atomic<bool> capturing_{false};

  std::atomic<epoch> now_{1};
  std::atomic<epoch> completed_;
  std::atomic<epoch> recorded_{0};
  std::atomic<bool> event_requested_{false};
  std::atomic<bool> cover_requested_{false};
  std::atomic<bool> prepared_;
  // Written often, so kept on another cache line than what every free reads.
  alignas(64) std::atomic<std::uint32_t> unrecorded_frees_{0};
  std::atomic<std::size_t> unrecorded_bytes_{0};
  // For a mortal stream: frees and bytes since the last event, and the number of frees that may precede the next one.
  std::atomic<std::uint32_t> uncovered_frees_{0};
  std::atomic<std::size_t> uncovered_bytes_{0};
  std::atomic<std::uint32_t> silent_frees_{0};
  std::atomic<int> retained_{0};

  alignas(64) mutable sync::mutex events_mutex_;
  std::array<recorded_event, max_events> ring_ __attribute__((guarded_by(events_mutex_))){};
  std::size_t first_ __attribute__((guarded_by(events_mutex_))) = 0;
  std::size_t size_ __attribute__((guarded_by(events_mutex_))) = 0;
  // A few spares, so that threads rarely contend for the common ones.
  pooled_event* own_events_ __attribute__((guarded_by(events_mutex_))) = nullptr;
  int own_event_count_ __attribute__((guarded_by(events_mutex_))) = 0;
  epoch last_covers_ = 0; // changes under events_mutex_, and no more once final_ is set
  std::uint32_t covered_frees_ __attribute__((guarded_by(events_mutex_))) = 0;
  sync::time_point last_recorded_ __attribute__((guarded_by(events_mutex_))) = {};
  bool last_open_ __attribute__((guarded_by(events_mutex_))) = false;
  std::atomic<bool> final_{false}; // nothing is enqueued on the stream any more, and the last event covers all

  std::atomic<bool> behind_{false};

  mutable sync::mutex clock_mutex_;
  vector_clock clock_ __attribute__((guarded_by(clock_mutex_)));
};

} // namespace detail
} // namespace gpumem
