// Events of the user; gpumem takes note of the order that they make between streams.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:event;
import :cuda;
import :device;
import :std;
import :stream;
import :stream_epochs;
import :stream_timeline;

namespace gpumem {

namespace detail {
// A point in a stream's order: an event recorded there, and the epoch that is complete once the event is.
struct stream_point {
  CUevent event = nullptr;
  stream_timeline* timeline = nullptr; // null: pools learn no order of streams from the event
  epoch covers = 0;
  int device = -1;
};
// Returns the point at which the user recorded the event. Throws acquire_error if that was in a graph capture.
stream_point point_of(event const& event);
} // namespace detail

/// An event without timing. If it is recorded on one stream and another stream waits for it, every pool knows that
/// order. Memory that was freed on the first stream before the record may then be reused on the second. A new event has
/// no record: it counts as complete, and a wait for it does nothing. Move-only. record() is called while no other
/// thread uses the event; the other functions may be called by several threads at a time.
export class event {
public:
  /// Throws cuda_error. The first record() takes the CUDA event, from a pool of events.
  explicit event(gpumem::device device);
  event(event&& other) noexcept;
  event& operator=(event&& other) noexcept;
  ~event();

  /// Makes the event cover all work enqueued on the stream so far, in place of an earlier record. On a stream that
  /// captures a graph the event becomes a part of the graph. Only streams of that capture may then wait for it, and
  /// pools learn no order from it. If this throws, the earlier record stays. Throws cuda_error, std::bad_alloc. Throws
  /// acquire_error (capture_unsupported) on the legacy stream while a blocking stream captures.
  void record(stream_ref stream);

  /// Makes work enqueued on the stream from now on wait for the covered work. Does nothing if the event was never
  /// recorded. Throws cuda_error. Throws acquire_error (capture_unsupported) if the stream captures and the event was
  /// not recorded in this capture, since the driver would end the capture.
  void make_wait(stream_ref waiting_stream) const;

  /// Returns whether the covered work is complete; true if the event was never recorded. Throws cuda_error on any error
  /// of the driver. Throws acquire_error (capture_unsupported) if the event was recorded in a graph capture.
  bool is_done() const;

  /// Waits on the host for the covered work. Throws as is_done() does.
  void synchronize() const;

  /// Returns the handle of the CUDA event. If the event was never recorded, makes a CUDA event without a record, which
  /// the caller may record. Pools learn no order from such a record. Throws std::invalid_argument after a move from
  /// this object, cuda_error, std::bad_alloc.
  CUevent get() const;
  /// Returns false after a move from this object.
  inline bool valid() const noexcept { return valid_; }

private:
  friend detail::stream_point detail::point_of(event const&);
  void publish() const noexcept;
  void refuse_captured() const;
  void refuse_other_capture(stream_key const& waiting_key) const;
  // Returns null if the event was never recorded and its handle was not given out. Throws after a move from this
  // object.
  detail::pooled_event* pooled() const;
  CUevent handle() const {
    auto const* const used = pooled();
    return used ? used->handle : nullptr;
  }
  mutable std::atomic<detail::pooled_event*> event_{nullptr};
  bool valid_ = true;
  gpumem::device device_;
  detail::stream_timeline* timeline_ = nullptr; // null: never recorded, or pools learn no order from the record
  epoch covers_ = 0;
  detail::vector_clock order_before_record_;
  bool in_capture_ = false;
  std::uint64_t capture_ = 0; // id of the capture of the newest record
};

} // namespace gpumem
