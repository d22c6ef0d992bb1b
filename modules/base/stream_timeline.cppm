// The order of one stream: its identity, its epochs, what the host has seen of it, and what it is ordered after.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_timeline;
import :cuda;
import :std;
import :sync;

namespace gpumem {

namespace extend {
/// A count that grows at each event recorded on a stream: what was freed in epoch e is covered by an event that carries
/// e or more.
export using epoch = std::uint64_t;
} // namespace extend

namespace detail {

class stream_timeline;

// For each stream (by its dense index) the newest epoch known to be ordered before. Small and sorted.
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

// A driver event out of a pool a context; given back, it is recorded again by somebody else.
struct pooled_event {
  CUevent handle = nullptr;
  CUcontext context = nullptr;
  pooled_event* next = nullptr;
};

// Takes an event of the context, creating one if need be: throws cuda_error, std::bad_alloc.
pooled_event* take_event(CUcontext context);
// Takes a spare one or none: no allocation, no driver call.
pooled_event* take_spare_event(CUcontext context) noexcept;
void give_event(pooled_event* event) noexcept;
// How many spare ones there should be, and whether there are fewer, of every context together: changes rarely, and may
// be looked at without a lock.
inline constexpr int wanted_spares = 4;
inline constinit std::atomic<bool> spares_low{true};
// Streams have died with more frees that no event covers than the library puts up with: from then on each free on a
// mortal stream records.
inline constinit std::atomic<bool> lost_events_seen{false};
// Called after an event that memory waits for was recorded; null at first.
inline constinit std::atomic<void (*)() noexcept> on_requested_recorded{nullptr};

enum class stream_kind : std::uint8_t {
  own,        // of gpumem: never destroyed
  adopted,    // its owner has promised that it lives
  legacy,     // cudaStreamLegacy of a device
  foreign,    // a handle that may die at any time: used only inside a call that was given it
  per_thread, // cudaStreamPerThread of a thread
  null,       // handle 0 of one thread: which stream that is depends on how the caller was compiled
  host,       // the host itself: memory that it frees is in no use, memory that it is given it may touch at once
};

// Never destroyed: pools keep pointers as tags. The timeline of a stream that has died serves a later stream, under the
// same index and with later epochs: every epoch of the earlier stream is complete then. Any thread.
//
// events of an epoch is an event that carries it. It is *precise* for a block if it was recorded inside the block's
// freeing call, and may then be waited for; else *late*: it covers work enqueued after the free, which may depend on
// the very stream that would wait, so it may only be queried. No other block has a precise epoch. Events of the null
// and legacy streams cover other streams' work too and are late for every block.
//
// A *mortal* stream (foreign, per_thread, null) can be recorded only inside a call that is given its handle, and every
// call may be the last one. Its timeline has one event more, the last event, which frees record again and again: late
// events that no full ring and no lack of spare events can keep away.
//
// Handle 0 of a program that has not said what it means is the thread's per-thread stream or the legacy stream. An
// event on the legacy stream would be a barrier between all blocking streams. Events of such a timeline are recorded on
// the per-thread stream, which waits for the legacy stream's work so far, on whatever thread that was enqueued: as on
// an H200.
class stream_timeline {
public:
  // `last`: an event of the context, where the stream is or may become mortal.
  stream_timeline(stream_kind kind, std::uint32_t index, std::uint64_t id, int device, CUcontext context,
                  CUstream handle, pooled_event* last);
  stream_timeline(stream_timeline const&) = delete;
  stream_timeline& operator=(stream_timeline const&) = delete;

  inline stream_kind kind() const noexcept { return kind_.load(std::memory_order_relaxed); }
  inline std::uint32_t index() const noexcept { return index_; }
  // The driver's id, which it never gives to another stream; 0 of a default stream.
  inline std::uint64_t id() const noexcept { return id_.load(std::memory_order_acquire); }
  inline int device() const noexcept { return device_; }
  inline CUcontext context() const noexcept { return context_; }
  // The handle may be used outside a call that was given it.
  inline bool owns_handle() const noexcept { return kind() <= stream_kind::adopted; }
  inline bool is_mortal() const noexcept { return kind() >= stream_kind::foreign && kind() <= stream_kind::null; }
  inline CUstream handle() const noexcept { return handle_.load(std::memory_order_relaxed); }
  // One more promise, or one less, that the handle lives; whether there is one now. The registry's lock guards it.
  bool adopt(bool promised) noexcept;
  inline int priority() const noexcept { return priority_; }
  void set_priority(int priority) noexcept { priority_ = priority; }
  // A capture that was begun through gpumem; others are the driver's to tell.
  inline bool capturing() const noexcept { return capturing_.load(std::memory_order_relaxed); }
  void set_capturing(bool on) noexcept { capturing_.store(on, std::memory_order_relaxed); }

  // The epoch of what is freed now.
  inline epoch current_epoch() const noexcept { return now_.load(std::memory_order_acquire); }

  // The host has seen everything of that epoch complete.
  inline bool completed(epoch e) const noexcept { return completed_.load(std::memory_order_acquire) >= e; }

  // This stream's work enqueued from now on is ordered after the other's epoch.
  bool ordered_after(stream_timeline const& other, epoch e) const;

  // Records events on the handle that the caller was given (or owns). A precise record closes an epoch of its own:
  // returns that epoch, in which the caller then tags the block it is freeing; a late one closes the current epoch and
  // returns it. 0: nothing could be recorded (capturing, events full, an error). Allocates no host memory.
  inline epoch record_at_free(CUstream caller_handle) noexcept { return record(caller_handle, true); }
  inline epoch record_later(CUstream caller_handle) noexcept { return record(caller_handle, false); }

  // The end of a use on a mortal stream: returns the epoch in which the caller tags the memory. The last event is
  // recorded at each of the stream's first 64 frees, then ever more rarely, at most every 64th free and every 64 MiB;
  // always if `always`, or once streams have been seen to die with frees that no event covers. `caller_handle`: the
  // handle, in a call that was given it; none in other calls, which leave no event. Threads that free on one stream at
  // the same time may miss counts of each other. Allocates no host memory. The epoch is read before the counts change,
  // and a record clears the counts before it closes the epoch: a free that no event covers is always counted.
  [[gnu::always_inline]] inline epoch end_use(std::optional<CUstream> caller_handle, std::size_t bytes,
                                              bool always) noexcept {
    auto const e = current_epoch();
    auto const frees = uncovered_frees() + 1;
    auto const sum = uncovered_bytes() + bytes;
    bool const due = frees > silent_frees_.load(std::memory_order_relaxed) || sum >= max_silent_bytes || always ||
                     lost_events_seen.load(std::memory_order_relaxed);
    if (due) [[unlikely]]
      return end_use_with_event(e, caller_handle, bytes);
    uncovered_frees_.store(frees, std::memory_order_relaxed);
    uncovered_bytes_.store(sum, std::memory_order_relaxed);
    return e;
  }

  // The thread of a default stream is about to end, or the owner of a foreign stream no longer promises its life:
  // records the last event. Calls that come later, without a handle, find that all work is covered.
  void record_last_event(CUstream caller_handle, bool final) noexcept;

  // Where events are recorded for a call that was given a handle.
  CUstream recorded_on(CUstream caller_handle) const noexcept;
  // Of the legacy stream, whose handle never dies: asks the driver whether it is idle, and publishes that. Asks nothing
  // while a blocking stream captures, since that would end the capture; a capture that another thread begins at that
  // very moment is not seen.
  void query_legacy() noexcept;

  // An object outside the pools keeps this timeline: it will free by it, or waits for an event of it. Timelines that
  // never serve another stream count nothing.
  inline void retain() noexcept {
    if (last_event_) retained_.fetch_add(1, std::memory_order_relaxed);
  }
  inline void release() noexcept {
    if (last_event_) retained_.fetch_sub(1, std::memory_order_release);
  }

  // Of a stream that has died, under the registry's lock. Whether the timeline may serve another stream: all is
  // covered, seen complete, and no object keeps it. Polls.
  bool is_reusable() noexcept;
  // Frees and bytes that no event covers: of a dead stream they stay so.
  inline std::uint32_t uncovered_frees() const noexcept { return uncovered_frees_.load(std::memory_order_relaxed); }
  inline std::size_t uncovered_bytes() const noexcept { return uncovered_bytes_.load(std::memory_order_relaxed); }
  // Becomes the timeline of another stream of the same context, which has not been used yet.
  void rebind(stream_kind kind, std::uint64_t id, CUstream handle) noexcept;
  // The registry's: another timeline of the same list.
  stream_timeline* next = nullptr;

  // Makes events of all frees so far. Records it late where a handle may be touched, `caller_handle` or the stream's
  // own. Queries the legacy stream. Otherwise asks for it.
  void cover(std::optional<CUstream> caller_handle) noexcept;
  // Whether polling, or covering without a call that is given the handle, can show the epoch complete.
  inline bool can_complete(epoch e) const noexcept {
    return newest_recorded() >= e || owns_handle() || kind() == stream_kind::legacy || completed(e);
  }

  // Memory waits for an event that covers all frees so far: the next call that is given the stream's handle, of
  // whatever kind, records it, and then calls `on_requested_recorded`.
  inline void request_cover() noexcept { cover_requested_.store(true, std::memory_order_relaxed); }
  inline bool cover_requested() const noexcept { return cover_requested_.load(std::memory_order_relaxed); }
  void record_requested(CUstream caller_handle) noexcept;

  // Another stream wants events of the current epoch; the next free that is given the stream records it.
  inline void request_event() noexcept { event_requested_.store(true, std::memory_order_relaxed); }
  inline bool event_requested() const noexcept { return event_requested_.load(std::memory_order_relaxed); }

  // Counts frees without events; true when enough have gathered that a record is due.
  bool count_unrecorded(std::uint32_t frees, std::size_t bytes, std::size_t max_bytes) noexcept;

  // Queries events and publishes what is complete. Since when the oldest of the rest has been open; null: there is
  // none, another thread polls or records, or the driver is gone.
  std::optional<sync::time_point> poll() noexcept;
  bool has_event() const noexcept;
  // When an event was polled last, the oldest was open though recorded 5 us before: the stream works for longer than
  // the host takes to come back.
  inline bool is_behind() const noexcept { return behind_.load(std::memory_order_relaxed); }
  // Newest epoch with events, complete or not.
  inline epoch newest_recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }

  // Waits on the host until the epoch is complete; false, at once, if polling cannot show that. Without an end where
  // the work has none.
  bool wait(epoch e) noexcept;

  // Whether there is precise events of (this, e) that is still open.
  bool waitable(epoch e) const noexcept;

  // Makes the waiting stream wait for precise events of (this, e), then publishes the order. False if there is no
  // precise events that is still open, or on an error of the driver.
  bool insert_wait(stream_timeline& waiting, CUstream caller_handle, epoch e) noexcept;

  // The host has synchronised with work up to and including the epoch.
  void publish_completed(epoch e) noexcept;

  // For events of the user: closes the current epoch before the record; learns an order after the wait returned.
  inline epoch advance_epoch() noexcept { return now_.fetch_add(1, std::memory_order_acq_rel); }
  void add_dependency(std::uint32_t index, epoch e, vector_clock const& before);
  vector_clock snapshot() const;

  // Prepares for recording without allocation; throws std::bad_alloc, cuda_error.
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
  // Between two records of an event a mortal stream frees silently: one time for each 64 frees before, 63 times and 64
  // MiB at most.
  static constexpr std::uint32_t frees_a_silent_one = 64, max_silent_frees = 63;
  static constexpr std::size_t max_silent_bytes = std::size_t{64} << 20;

  void prepare_events();
  pooled_event* acquire_event() noexcept;
  void return_event(pooled_event* event) noexcept;
  epoch record(CUstream caller_handle, bool precise) noexcept;
  inline recorded_event& at(std::size_t i) noexcept { return ring_[(first_ + i) % max_events]; }
  inline recorded_event const& at(std::size_t i) const noexcept { return ring_[(first_ + i) % max_events]; }
  recorded_event const* find_waitable(epoch e) const noexcept;
  static bool complete(recorded_event const& one) noexcept;
  // Whether the stream captures, so that its events are a graph's; an error counts as that.
  bool captures(CUstream caller_handle) const noexcept;
  // Queries events, publishes what is complete and gives its events back. Under events_mutex_.
  void retire_completed() noexcept;
  void poll_last() noexcept;
  epoch record_again(CUstream caller_handle) noexcept;
  epoch end_use_with_event(epoch e, std::optional<CUstream> caller_handle, std::size_t bytes) noexcept;
  // Under events_mutex_. An event has covered `frees` more frees: the next silent ones are counted anew.
  void count_covered(std::uint32_t frees) noexcept;
  // Under events_mutex_: the last event is of a capture that came and went beside its record, and so no events.
  void lose_last_event() noexcept;
  inline void raise_recorded(epoch covers) noexcept {
    recorded_.store(std::max(covers, recorded_.load(std::memory_order_relaxed)), std::memory_order_release);
  }

  std::atomic<stream_kind> kind_;
  std::uint32_t const index_;
  std::atomic<std::uint64_t> id_;
  int const device_;
  CUcontext const context_;
  pooled_event* const last_event_; // null of streams that never are mortal
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
  // Written often: not beside what every free reads.
  alignas(64) std::atomic<std::uint32_t> unrecorded_frees_{0};
  std::atomic<std::size_t> unrecorded_bytes_{0};
  // A mortal stream's frees since an event was recorded, and the number of them that may come before the next one.
  std::atomic<std::uint32_t> uncovered_frees_{0};
  std::atomic<std::size_t> uncovered_bytes_{0};
  std::atomic<std::uint32_t> silent_frees_{0};
  std::atomic<int> retained_{0};

  alignas(64) mutable sync::mutex events_mutex_;
  std::array<recorded_event, max_events> ring_{};
  std::size_t first_ = 0;
  std::size_t size_ = 0;
  pooled_event* own_events_ = nullptr; // spare; a few, so that streams of many threads rarely meet at the common ones
  int own_event_count_ = 0;
  epoch last_covers_ = 0;
  std::uint32_t covered_frees_ = 0;
  sync::time_point last_recorded_ = {};
  bool last_open_ = false;
  std::atomic<bool> final_{false}; // nothing can be enqueued on the stream any more, and the last event covers all

  std::atomic<bool> behind_{false};

  mutable sync::mutex clock_mutex_;
  vector_clock clock_;
};

} // namespace detail
} // namespace gpumem
