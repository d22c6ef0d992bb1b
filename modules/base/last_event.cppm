// The last event of one stream that may die.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:last_event;
import :cuda;
import :pooled_event;
import :std;
import :stream_epochs;
import :stream_identity;
import :sync;

namespace gpumem::detail {

/// The last event of a stream that may die at any time: one event that frees record again and again. After the stream's
/// death it covers all frees up to its last record. It may only be queried, since it also covers work enqueued after
/// the frees. It needs neither room among the stream's other events nor a spare event. Other streams have no last
/// event: nothing is recorded then. One thread at a time: the stream's timeline guards it by a mutex.
///
/// `in_ring`, a parameter of some functions: the newest epoch that the stream's other events cover, or 0.
export class last_event {
public:
  // `event`: null for a stream that never dies.
  last_event(stream_identity const& stream, stream_epochs& epochs, pooled_event* event) noexcept
      : stream_{stream}, epochs_{epochs}, event_{event} {}
  last_event(last_event const&) = delete;
  last_event& operator=(last_event const&) = delete;

  // Records the event on the handle that the caller got, and closes the current epoch for it. Returns the epoch; 0 if
  // the event was not recorded: a capture, an error, no last event. Allocates no host memory.
  epoch record(CUstream caller_handle, epoch in_ring) noexcept;
  // Queries the event if it is open, and publishes that it is complete. Called inside a relaxed_capture.
  void poll(epoch in_ring) noexcept;
  // Returns the epoch that the event covers while it is open: it was recorded, and is not known to be complete.
  // Otherwise returns 0.
  inline epoch open_epoch() const noexcept { return open_ ? covers_ : 0; }
  // Returns the time of the last record while the event is open; otherwise null.
  std::optional<sync::time_point> open_since() const noexcept;

private:
  // Discards the record: a capture that began and ended during it took it, so the event covers nothing.
  void lose(epoch in_ring) noexcept;

  stream_identity const& stream_;
  stream_epochs& epochs_;
  pooled_event* const event_;
  epoch covers_ = 0;
  sync::time_point recorded_ = {};
  bool open_ = false;
};

} // namespace gpumem::detail
