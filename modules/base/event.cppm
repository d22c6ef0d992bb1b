// Events of the user; gpumem takes note of the order that they make between streams.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:event;
import :cuda;
import :device;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem {

namespace detail {
// A point in a stream's order: an event recorded there, and the epoch that is complete once the event is. An epoch is a
// number that the stream's timeline (gpumem's record of the stream) raises with each event.
struct stream_point {
  CUevent event = nullptr;
  stream_timeline* timeline = nullptr; // null: pools learn no order of streams from the event
  epoch covers = 0;
  int device = -1;
};
// Returns the point at which the user recorded the event. Throws acquire_error if that was in a graph capture.
stream_point point_of(event const& of);
} // namespace detail

/// An event from a pool of events, without timing. If it is recorded on one stream and another stream waits for it,
/// every pool knows that order. Memory that was freed on the first stream before the record may then be reused on the
/// second. Move-only. record() and make_wait() are called by one thread at a time.
export class event {
public:
  /// Throws cuda_error, std::bad_alloc.
  explicit event(gpumem::device where);
  event(event&& other) noexcept;
  event& operator=(event&& other) noexcept;
  ~event();

  /// Makes the event cover all work enqueued on the stream so far, in place of an earlier record. On a stream that
  /// captures a graph the event becomes a part of the graph. Only streams of that capture may then wait for it, and
  /// pools learn no order from it. Throws cuda_error.
  void record(stream_ref on);

  /// Makes work enqueued on the stream from now on wait for the covered work. Does nothing if the event was never
  /// recorded. Throws cuda_error.
  void make_wait(stream_ref waiting) const;

  /// Returns whether the covered work is complete; true if the event was never recorded. Throws cuda_error on any error
  /// of the driver. Throws acquire_error (capture_unsupported) if the event was recorded in a graph capture.
  bool is_done() const;

  /// Waits on the host for the covered work. Throws as is_done() does.
  void synchronize() const;

  /// Returns the handle of the CUDA event. Throws std::invalid_argument after a move from this object.
  CUevent get() const { return pooled().handle; }
  /// Returns false after a move from this object.
  inline bool valid() const noexcept { return event_ != nullptr; }

private:
  friend detail::stream_point detail::point_of(event const&);
  void publish() const noexcept;
  void refuse_captured() const;
  detail::pooled_event& pooled() const;
  detail::pooled_event* event_;
  gpumem::device device_;
  detail::stream_timeline* on_ = nullptr; // null: never recorded, or pools learn no order from the record
  epoch covers_ = 0;
  detail::vector_clock before_;
  bool in_capture_ = false;
};

} // namespace gpumem
