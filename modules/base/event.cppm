// Events of the user, which also tell gpumem of the order that they make.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:event;
import :cuda;
import :device;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem {

namespace detail {
// A point in a stream's order: the event that marks it, and the epoch that is complete once the event is.
struct stream_point {
  CUevent event = nullptr;
  stream_timeline* timeline = nullptr; // null: the event tells pools nothing
  epoch covers = 0;
  int device = -1;
};
// Returns the point at which an event of the user was recorded; throws acquire_error if that was in a capture.
stream_point point_of(event const& of);
} // namespace detail

/// A pooled event without timing. If it is recorded on one stream and another stream waits for it, every pool knows
/// that order. Memory freed on the first stream before the record may then be reused on the second. Move-only; record
/// and wait from one thread at a time.
export class event {
public:
  /// Throws cuda_error, std::bad_alloc.
  explicit event(gpumem::device where);
  event(event&& other) noexcept;
  event& operator=(event&& other) noexcept;
  ~event();

  /// Covers all work enqueued on the stream so far, in place of an earlier record. On a stream that captures a graph
  /// the event becomes part of the graph: only streams of that capture may wait for it, and it tells pools nothing.
  /// Throws cuda_error.
  void record(stream_ref on);

  /// Makes work enqueued on the stream from now on wait for the covered work; does nothing if never recorded. Throws
  /// cuda_error.
  void make_wait(stream_ref waiting) const;

  /// Whether the covered work is complete; true if never recorded. Throws cuda_error on any error of the driver;
  /// acquire_error (capture_unsupported) if the event was recorded in a graph capture.
  bool is_done() const;

  /// Waits on the host for the covered work. Throws like is_done().
  void synchronize() const;

  /// Returns the handle of the CUDA event. Throws std::invalid_argument after a move from it.
  CUevent get() const { return pooled().handle; }
  /// False after a move from it.
  inline bool valid() const noexcept { return event_ != nullptr; }

private:
  friend detail::stream_point detail::point_of(event const&);
  void publish() const noexcept;
  void refuse_captured() const;
  detail::pooled_event& pooled() const;
  detail::pooled_event* event_;
  gpumem::device device_;
  detail::stream_timeline* on_ = nullptr; // null: never recorded
  epoch covers_ = 0;
  detail::vector_clock before_;
  bool in_capture_ = false;
};

} // namespace gpumem
