// The open events of one stream, and the stream's own spare events.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:event_ring;
import :cuda;
import :pooled_event;
import :std;
import :stream_epochs;
import :stream_identity;
import :sync;

namespace gpumem::detail {

/// A flag by which one thread requests an event on a stream. A later call of any thread that gets the stream's handle
/// records it.
export class request_flag {
public:
  inline void raise() noexcept { raised_.store(true, std::memory_order_relaxed); }
  inline bool raised() const noexcept { return raised_.load(std::memory_order_relaxed); }
  inline void drop() noexcept { raised_.store(false, std::memory_order_relaxed); }

private:
  std::atomic<bool> raised_{false};
};

/// The events of one stream that were recorded and are not known to be complete, oldest first. Complete ones become
/// spare events of the ring. One thread at a time: the stream's timeline guards the ring by a mutex.
///
/// An event is *precise* for a block if it was recorded inside the call that freed the block; other streams may wait
/// for it. Its epoch tags no other block. Any other event is *late*: it also covers work enqueued after the free, which
/// may depend on the very stream that would wait, so it may only be queried. Events of the null and legacy streams also
/// cover work of other streams, and are late for every block.
export class event_ring {
public:
  event_ring(stream_identity const& stream, stream_epochs& epochs) noexcept : stream_{stream}, epochs_{epochs} {}
  event_ring(event_ring const&) = delete;
  event_ring& operator=(event_ring const&) = delete;

  // Records a precise or a late event on the handle, closes an epoch for it, and drops the request, which the event
  // serves. Returns the epoch; 0 if nothing could be recorded: a capture, no room, no spare event, an error. Called
  // inside a relaxed_capture, so that its driver calls end no capture of another thread. Allocates no host memory.
  // `in_last`: see retire_completed().
  epoch record(CUstream caller_handle, bool precise, request_flag& request, epoch in_last) noexcept;
  // Queries events, publishes what is complete and removes the complete events. Called inside a relaxed_capture.
  // `in_last`: the epoch that the stream's last_event covers while it is open, otherwise 0. That event is not in the
  // ring.
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
  // Takes an own spare event, otherwise one of the context; null if there is none.
  pooled_event* acquire() noexcept;
  void give_back(pooled_event* event) noexcept;

  stream_identity const& stream_;
  stream_epochs& epochs_;
  std::array<recorded_event, max_events> ring_{};
  std::size_t first_ = 0;
  std::size_t size_ = 0;
  // A few spares, so that threads rarely contend for those of the context.
  pooled_event* spares_ = nullptr;
  int spare_count_ = 0;
};

} // namespace gpumem::detail
