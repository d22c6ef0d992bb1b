// Keeps one stream's open events, which are not known to be complete, and its spare events.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:event_ring;
import :cuda;
import :pooled_event;
import :std;
import :stream_epochs;
import :stream_identity;
import :sync;

namespace gpumem::detail {

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
/// An event closes the current epoch and begins the next: it covers all work of epochs up to the closed one. A freed
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

  // Records a precise or a late event on the stream and closes the current epoch. Drops `request`, which the event
  // fulfils; drops it also if the ring is full. Returns the closed epoch. Returns 0 if no event was recorded: the
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
  static bool complete(recorded_event const& one) noexcept;
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

} // namespace gpumem::detail
