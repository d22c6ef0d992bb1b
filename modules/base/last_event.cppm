// The last event of a mortal stream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:last_event;
import :cuda;
import :pooled_event;
import :std;
import :stream_epochs;
import :stream_identity;
import :sync;

namespace gpumem::detail {

/// The last event of a mortal stream. After the stream's death it covers all frees up to its last record. No stream
/// waits for it, since it also covers work enqueued after the frees; it is only queried. The other events of the stream
/// lie in a ring, and complete ones are reused. The last event needs no room in that ring and no reused event. A stream
/// that never dies has no last event. One thread at a time: stream_timeline guards the object by a mutex.
///
/// A record closes the current epoch: the event then covers all frees of epochs up to that one. An event is open if it
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

  // Records the event on the stream, and closes the current epoch for it. `caller_handle`: the stream's handle, from
  // the user's call. Returns the closed epoch. Returns 0 if no event was recorded: there is none, the stream captures,
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
