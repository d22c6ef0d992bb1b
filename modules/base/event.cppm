// An event that also tells gpumem of the order it makes.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:event;
import :cuda;
import :device;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem {

namespace detail {
// Somewhere in a stream's order: the event that tells when the host is there, and what is known then.
struct stream_point {
  CUevent event = nullptr;
  stream_timeline* timeline = nullptr; // null: it tells nothing
  epoch covers = 0;
  int device = -1;
};
// Where an event of the user was recorded; throws acquire_error if in a capture.
stream_point point_of(event const& of);
} // namespace detail

/// A pooled, timing-free event. Recording it on a stream and letting another stream wait for it is an order that every
/// pool knows of: memory freed on the first before the record may then be reused on the second. Move-only; record and
/// wait from one thread at a time.
export class event {
public:
  /// Throws cuda_error, std::bad_alloc.
  explicit event(gpumem::device where);
  event(event&& other) noexcept;
  event& operator=(event&& other) noexcept;
  ~event();

  /// Captures all work enqueued on the stream so far, replacing what was captured before. On a stream that captures a
  /// graph it becomes a part of the graph: it may then be waited for by streams of the capture only, and tells pools
  /// nothing. Throws cuda_error.
  void record(stream_ref on);

  /// Work enqueued on the stream from now on waits for what was captured; nothing if never recorded. Throws cuda_error.
  void make_wait(stream_ref waiting) const;

  /// Whether what was captured is complete; true if never recorded. Throws cuda_error: an error is not completion;
  /// acquire_error (capture_unsupported) if it was recorded in a graph's capture.
  bool is_done() const;

  /// Waits for it on the host. Throws like is_done().
  void synchronize() const;

  inline CUevent get() const noexcept { return event_->handle; }
  /// False when moved from.
  inline bool valid() const noexcept { return event_ != nullptr; }

private:
  friend detail::stream_point detail::point_of(event const&);
  void publish() const noexcept;
  void refuse_captured() const;
  detail::pooled_event* event_;
  gpumem::device device_;
  detail::stream_timeline* on_ = nullptr; // null: never recorded
  epoch covers_ = 0;
  detail::vector_clock before_;
  bool in_capture_ = false;
};

} // namespace gpumem
