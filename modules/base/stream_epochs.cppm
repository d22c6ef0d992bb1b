// The epochs of a stream, and the events that end them.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_epochs;
import :cuda;
import :std;
import :stream_identity;
import :sync;

namespace gpumem {

namespace extend {
/// A number that grows with each event recorded on a stream: an event of epoch e covers all frees of epochs up to e.
export using epoch = std::uint64_t;
} // namespace extend

namespace detail {

/// An epoch that was ended for an event, and the number of frees that the event covers if its record succeeds.
export struct ended_epoch {
  epoch number = 0;
  std::uint32_t frees = 0;
};

/// The epochs of one stream, and the counts of its unrecorded and its uncovered frees. The stream's events are in its
/// event_ring; a mortal stream also has a last_event, and only its frees are counted as uncovered.
/// Any thread may call all functions, but only one thread at a time may call end_epoch(), covered(), not_covered(),
/// lose_event() and restart().
export class stream_epochs {
public:
  /// Most bytes of silent frees. For streams that live on, this number replaces the part of the reserved bytes that
  /// makes an event due (event_threshold_of()) if that is less.
  /// Utilization: no change.
  static constexpr std::size_t max_silent_bytes = std::size_t{64} << 20;
  /// Frees that a thread cache, or a stream's free list, counts before it adds their number to the count here.
  /// Utilization: half none, double +.005.
  static constexpr std::uint32_t frees_per_batch = 64;

  explicit stream_epochs(epoch completed = 0) noexcept : completed_{completed} {}

  // Returns the epoch of memory that is freed now.
  inline epoch current() const noexcept { return now_.load(std::memory_order_acquire); }
  // Ends the current epoch and returns it. Called before an event is recorded, or the stream is queried, to cover the
  // epoch.
  inline epoch advance() noexcept { return now_.fetch_add(1, std::memory_order_acq_rel); }
  // Returns whether the host has seen all work of the epoch complete.
  inline bool completed(epoch e) const noexcept { return completed_.load(std::memory_order_acquire) >= e; }
  // Notes that the host has seen all work up to and including the epoch complete.
  void publish_completed(epoch e) noexcept;
  // Returns the newest epoch with an event, complete or not.
  inline epoch newest_recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }

  // Counts a silent free. Returns false, and counts nothing, if no more frees or bytes may be silent before the next
  // event. If several threads free on one stream at the same time, some of their counts can be lost.
  [[gnu::always_inline]] inline bool count_silent(std::size_t bytes) noexcept {
    auto const frees = uncovered_frees() + 1;
    auto const sum = uncovered_bytes() + bytes;
    if (frees > silent_frees_.load(std::memory_order_relaxed) || sum >= max_silent_bytes) [[unlikely]]
      return false;
    uncovered_frees_.store(frees, std::memory_order_relaxed);
    uncovered_bytes_.store(sum, std::memory_order_relaxed);
    return true;
  }
  // Counts a free that is not silent. The caller then tries to record an event, and calls covered() if that succeeds.
  inline void count_uncovered(std::size_t bytes) noexcept {
    uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
    uncovered_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Return the frees and bytes that no event covers; for a dead stream no event ever will.
  inline std::uint32_t uncovered_frees() const noexcept { return uncovered_frees_.load(std::memory_order_relaxed); }
  inline std::size_t uncovered_bytes() const noexcept { return uncovered_bytes_.load(std::memory_order_relaxed); }

  // Counts unrecorded frees. Returns whether an event is due: at `frees_per_event` frees or `max_bytes`.
  bool count_unrecorded(std::uint32_t frees, std::size_t bytes, std::size_t max_bytes) noexcept;
  void reset_unrecorded() noexcept;

  // Ends an epoch for an event that is recorded next. A *precise* epoch is one that no other thread can have read. So
  // only memory that the ending thread frees is tagged with it.
  ended_epoch end_epoch(bool precise = false) noexcept;
  // Notes that the event of the epoch was recorded: it covers the frees that end_epoch() counted.
  void covered(ended_epoch const& by_event) noexcept;
  // Notes that the event of the epoch was not recorded: the frees that end_epoch() counted are uncovered again.
  void not_covered(ended_epoch const& failed) noexcept;
  // Notes that an event was recorded but covers nothing, since it belongs to a graph capture. Afterwards `newest` is
  // the newest epoch with an event.
  void lose_event(epoch newest) noexcept;
  // Lets no more silent frees happen before the next event.
  inline void forbid_silent() noexcept { silent_frees_.store(0, std::memory_order_relaxed); }

  // Begins anew for another stream: all epochs so far count as complete. Must be called only if no free is uncovered.
  void restart() noexcept;

private:
  std::atomic<epoch> now_{1};
  std::atomic<epoch> completed_;
  std::atomic<epoch> recorded_{0};
  // Frees write these often, so they are kept on another cache line than the epochs, which every free reads.
  alignas(64) std::atomic<std::uint32_t> unrecorded_frees_{0};
  std::atomic<std::size_t> unrecorded_bytes_{0};
  std::atomic<std::uint32_t> uncovered_frees_{0};
  std::atomic<std::size_t> uncovered_bytes_{0};
  std::atomic<std::uint32_t> silent_frees_{0};  // how many silent frees may precede the next event
  std::atomic<std::uint32_t> covered_frees_{0}; // covered by events so far; a larger number allows more silent frees
};

} // namespace detail
} // namespace gpumem

namespace gpumem::detail {

/// A CUDA event from a pool of events; each context has such a pool. After give_event() other streams reuse the event,
/// which still has its last record until they record it again.
export struct pooled_event {
  CUevent handle = nullptr;
  CUcontext context = nullptr;
  pooled_event* next = nullptr; ///< in the list that holds the event
  bool reused = true;           ///< false: give_event() destroys the event
};

/// Returns a spare event of the context; creates one if there is none. Throws cuda_error, std::bad_alloc. This function
/// and those below may be called by any thread.
export pooled_event* take_event(CUcontext context);
/// Creates an event that has no record, which give_event() destroys. Throws cuda_error, std::bad_alloc.
export pooled_event* make_unrecorded_event(CUcontext context);
/// Returns a spare event of the context; null if there is none. No allocation, no driver call.
export pooled_event* take_spare_event(CUcontext context) noexcept;
/// Gives the event back to its pool, or destroys it.
export void give_event(pooled_event* event) noexcept;
/// Creates events until the context has `tuning::spare_events` spare ones. Frees record events but allocate nothing, so
/// allocations call this function to make events in advance. Throws cuda_error, std::bad_alloc.
export void make_spare_events(CUcontext context);
/// Set while all contexts together have fewer than `tuning::spare_events` spare events.
export inline constinit std::atomic<bool> spares_low{true};

/// A flag by which one thread requests an event on a stream. A later call that gets the stream's handle, on any thread,
/// records the event.
export class request_flag {
public:
  inline void raise() noexcept { raised_.store(true, std::memory_order_relaxed); }
  inline bool raised() const noexcept { return raised_.load(std::memory_order_relaxed); }
  inline void drop() noexcept { raised_.store(false, std::memory_order_relaxed); }

private:
  std::atomic<bool> raised_{false};
};

/// The *open* events of one stream, oldest first: they were recorded and are not known to be complete. Complete events
/// become spare events of the ring. One thread at a time: stream_timeline guards the ring by a mutex.
///
/// An event ends the current epoch and begins the next: it covers all work of epochs up to the ended one. A freed
/// block is tagged with the epoch of its free.
///
/// No other block is tagged with the epoch of a precise event. A stream that waited for a late event could deadlock,
/// since the later work that it covers can depend on the same stream. Events of the null and legacy streams also cover
/// work of other streams, and are late for every block.
export class event_ring {
public:
  event_ring(stream_identity const& stream, stream_epochs& epochs) noexcept : stream_{stream}, epochs_{epochs} {}
  event_ring(event_ring const&) = delete;
  event_ring& operator=(event_ring const&) = delete;

  // Records a precise or a late event on the stream and ends the current epoch. Drops `request`, which the event
  // fulfils; drops it also if the ring is full. Returns the ended epoch. Returns 0 if no event was recorded: the
  // stream captures, the ring is full, there is no spare event, or the driver fails. The caller holds a
  // relaxed_capture, so that the driver calls end no graph capture of another thread. Allocates no host memory.
  // `in_last`: the epoch that the stream's last_event covers while that event is open, otherwise 0. A stream that may
  // be destroyed has this one event besides the events of its ring.
  epoch record(CUstream caller_handle, bool precise, request_flag& request, epoch in_last) noexcept;
  // Queries the open events and removes the complete ones. Tells stream_epochs the newest epoch whose event is
  // complete. The caller holds a relaxed_capture. `in_last`: as in record().
  void retire_completed(epoch in_last) noexcept;
  // Returns the open precise event of the epoch; null if there is none.
  CUevent find_waitable(epoch e) const noexcept;
  // Returns the epoch of the newest event; 0 if the ring is empty.
  inline epoch newest() const noexcept { return size_ > 0 ? at(size_ - 1).covers : 0; }
  // Returns the time at which the oldest event was recorded; null if the ring is empty.
  std::optional<sync::time_point> open_since() const noexcept;
  inline bool has_spare() const noexcept { return spare_count_ > 0; }

private:
  struct recorded_event {
    epoch covers = 0;
    pooled_event* event = nullptr;
    bool waitable = false;
    sync::time_point recorded = {};
  };
  static constexpr std::size_t max_events = 64;

  inline recorded_event& at(std::size_t i) noexcept { return ring_[(first_ + i) % max_events]; }
  inline recorded_event const& at(std::size_t i) const noexcept { return ring_[(first_ + i) % max_events]; }
  static bool complete(recorded_event const& event) noexcept;
  // Takes a spare event of the ring; if it has none, takes one of the context. Returns null if there is none either.
  pooled_event* acquire() noexcept;
  void give_back(pooled_event* event) noexcept;

  stream_identity const& stream_;
  stream_epochs& epochs_;
  std::array<recorded_event, max_events> ring_{};
  std::size_t first_ = 0;
  std::size_t size_ = 0;
  // A few spare events, so that threads rarely contend for the spare events of the context.
  pooled_event* spares_ = nullptr;
  int spare_count_ = 0;
};

/// The last event of a mortal stream. After the stream's death it covers all frees up to its last record. No stream
/// waits for it, since it also covers work enqueued after the frees; it is only queried. The other events of the stream
/// lie in a ring, and complete ones are reused. The last event needs no room in that ring and no reused event. A stream
/// that never dies has no last event. One thread at a time: stream_timeline guards the object by a mutex.
///
/// A record ends the current epoch: the event then covers all frees of epochs up to that one. An event is open if it
/// was recorded and is not known to be complete.
///
/// `in_ring`, a parameter of some functions: the newest epoch that the events in the ring cover; 0 if the ring is
/// empty. It becomes the newest epoch with an event if the record of the last event is lost.
export class last_event {
public:
  // `event`: null for a stream that never dies.
  last_event(stream_identity const& stream, stream_epochs& epochs, pooled_event* event) noexcept
      : stream_{stream}, epochs_{epochs}, event_{event} {}
  last_event(last_event const&) = delete;
  last_event& operator=(last_event const&) = delete;

  // Records the event on the stream, and ends the current epoch for it. `caller_handle`: the stream's handle, from
  // the user's call. Returns the ended epoch. Returns 0 if no event was recorded: there is none, the stream captures,
  // or the driver failed. Allocates no host memory.
  epoch record(CUstream caller_handle, epoch in_ring) noexcept;
  // Queries the event if it is open. If it is complete, notes in `epochs` that its epoch is complete. The caller holds
  // a relaxed_capture, so that the query ends no graph capture of another thread.
  void poll(epoch in_ring) noexcept;
  // Returns the epoch that the event covers, while the event is open; otherwise 0.
  inline epoch open_epoch() const noexcept { return open_ ? covers_ : 0; }
  // Returns the time of the last record while the event is open; otherwise null.
  std::optional<sync::time_point> open_since() const noexcept;

private:
  // Forgets the last record, because the event no longer tells which frees are complete. Either a query failed, or
  // another thread began a graph capture during the record, and the event now belongs to that capture.
  void lose(epoch in_ring) noexcept;

  stream_identity const& stream_;
  stream_epochs& epochs_;
  pooled_event* const event_;
  epoch covers_ = 0;
  sync::time_point recorded_ = {};
  bool open_ = false;
};

} // namespace gpumem::detail
