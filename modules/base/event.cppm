// An event that also tells gpumem of the order it makes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:event;
import :cuda;
import :device;
import :stream;
import :timeline;

namespace gpumem {

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

  /// Captures all work enqueued on the stream so far, replacing what was captured before. Throws cuda_error.
  void record(stream_ref on);

  /// Work enqueued on the stream from now on waits for what was captured; nothing if never recorded. Throws cuda_error.
  void make_wait(stream_ref waiting) const;

  /// Whether what was captured is complete; true if never recorded. Throws cuda_error: an error is not completion.
  bool is_done() const;

  /// Waits for it on the host. Throws cuda_error.
  void synchronize() const;

  CUevent get() const noexcept { return event_->handle; }
  /// False when moved from.
  bool valid() const noexcept { return event_ != nullptr; }

private:
  void publish() const noexcept;
  detail::pooled_event* event_;
  gpumem::device device_;
  detail::timeline* on_ = nullptr; // null: never recorded
  epoch covers_ = 0;
  detail::vector_clock before_;
};

} // namespace gpumem
