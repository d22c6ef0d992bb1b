// Streams: gpumem's own, which are never destroyed before exit, and the identity of all others.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream;
import :cuda;
import :device;
import :timeline_table;
import :std;
import :stream_timeline;

namespace gpumem {

export class event;
export class stream;
export class allocation;
namespace extend {
export class stream_key;
export stream_key identify(stream_ref handle, device where);
export stream_key identify(stream_ref handle);
/// The library's knowledge of a stream; opaque.
export using stream_timeline = detail::stream_timeline;
} // namespace extend

namespace detail {
stream_key wait_without_identity(CUstream handle) noexcept;
}

/// The meaning of handle 0. A call cannot tell it: it depends on whether the caller was compiled with per-thread
/// default streams.
export enum class default_stream : std::uint8_t {
  either,     ///< not known: other streams reuse memory freed on it after both possible streams have done their work
  legacy,     ///< the device's legacy stream, `cudaStreamLegacy`: one stream for all threads
  per_thread, ///< the calling thread's stream, `cudaStreamPerThread`
};
/// Sets what handle 0 means in all calls of the process from now on; initially `either`. A program that sets it reuses
/// memory sooner on other threads (legacy) or on other streams (per_thread). Any thread.
export void set_default_stream(default_stream means) noexcept;

namespace extend {
/// How a request treats other requests that wait for memory of the same resource.
export enum class queueing : std::uint8_t {
  none,     ///< it ignores them, and may overtake them
  behind,   ///< it gets memory only if none of them waits
  admitted, ///< it has waited and has its turn: a refusal does not end it
};

/// A stream as a resource sees it: identified once, in the outermost call, and passed down.
export class stream_key {
public:
  /// Returns the key of the host: memory freed with it is no longer used, and memory allocated with it the host may use
  /// at once.
  static stream_key host() noexcept;
  /// Returns the key of an own or adopted stream, or of another stream that is known not to capture.
  static inline stream_key of(stream_timeline& timeline, CUstream handle) noexcept {
    return {timeline, handle, true, timeline.capturing()};
  }

  /// Returns the id that the driver gives to the stream; 0 for the host.
  inline std::uint64_t id() const noexcept { return timeline_->id(); }
  /// Whether this is the key of the host.
  inline bool is_host() const noexcept { return timeline_->kind() == detail::stream_kind::host; }
  /// Whether the stream captured a graph when it was identified. The driver was asked if the stream is not gpumem's
  /// own.
  inline bool capturing() const noexcept { return capturing_; }
  /// Whether the call may use the handle; a free by identity must not.
  inline bool has_handle() const noexcept { return has_handle_; }
  /// Returns the handle, to be used only if has_handle().
  inline CUstream handle() const noexcept { return handle_; }
  /// Whether a request may wait on the host, for a bounded time, for memory that is free but still in use.
  inline bool may_wait() const noexcept { return may_wait_; }
  /// Returns the same key with or without that permission.
  inline stream_key waiting(bool may = true) const noexcept {
    auto key = *this;
    key.may_wait_ = may;
    return key;
  }
  /// Returns how the request treats requests that wait.
  inline queueing queues() const noexcept { return queueing_; }
  /// Returns the same key with another treatment of requests that wait.
  inline stream_key queueing_as(queueing how) const noexcept {
    auto key = *this;
    key.queueing_ = how;
    return key;
  }
  /// Returns the key of the same stream without permission to use the handle, unless gpumem knows that it lives.
  stream_key by_identity() const noexcept;
  /// Returns the key of a stream that an object has kept with its handle, which must still live. For a default stream
  /// of another thread, and for a handle that belongs to another stream by now, it is a key by identity.
  static inline stream_key at_end_of(stream_timeline& timeline, CUstream handle) noexcept {
    bool const known = timeline.owns_handle() && !detail::owned_handles_hidden.load(std::memory_order_relaxed);
    return known ? of(timeline, handle) : at_end_of_other(timeline, handle);
  }

  /// Returns what the library knows of the stream.
  inline stream_timeline& timeline() const noexcept { return *timeline_; }

  /// Ends a use of memory: returns the epoch with which the memory is tagged. On a stream that may die this records an
  /// event: at each of the stream's first 64 frees, then rarely; always if `always`.
  [[gnu::always_inline]] inline epoch end_use(std::size_t bytes, bool always = false) const noexcept {
    if (!timeline_->is_mortal()) [[likely]]
      return timeline_->current_epoch();
    bool const may_record = has_handle_ && !capturing_;
    return timeline_->end_use(may_record ? std::optional{handle_} : std::nullopt, bytes, always);
  }

  /// Waits on the host for all work enqueued on the stream so far; the host's key waits for nothing. Returns the
  /// driver's error. Does not wait and returns CUDA_ERROR_NOT_READY if the stream may have died and the key has no
  /// handle, or an error of capture if the stream captures. Never throws.
  CUresult wait_on_host() const noexcept;

  friend bool operator==(stream_key const& a, stream_key const& b) noexcept { return a.timeline_ == b.timeline_; }

private:
  static stream_key at_end_of_other(stream_timeline& timeline, CUstream handle) noexcept;
  friend class gpumem::stream;
  friend class gpumem::allocation;
  friend stream_key identify(stream_ref, device);
  friend stream_key identify(stream_ref);
  friend stream_key detail::wait_without_identity(CUstream) noexcept;
  inline stream_key(stream_timeline& timeline, CUstream handle, bool has_handle, bool capturing) noexcept
      : timeline_{&timeline}, handle_{handle}, has_handle_{has_handle}, capturing_{capturing} {}

  stream_timeline* timeline_;
  CUstream handle_;
  bool has_handle_;
  bool capturing_;
  bool may_wait_ = false;
  queueing queueing_ = queueing::none;
};

/// Identifies a stream for a resource on a device: own and adopted streams by their handle (no driver call), others by
/// their id (two driver calls: id, capture). While a capture_scope is open, all streams are identified by their id.
/// Handle 0 is a different stream for each device and calling thread. Throws std::invalid_argument for a default handle
/// while another device is current, cuda_error. Any thread.
export stream_key identify(stream_ref handle, device where);

/// The same without a resource: a default handle is that of the current device.
export stream_key identify(stream_ref handle);
} // namespace extend

namespace detail {
// Returns the timeline of an own or adopted stream; null for others, and while a capture scope is open. No driver call.
inline stream_timeline* find_owned_timeline(CUstream handle) noexcept {
  return handle ? owned_handles.find(handle) : nullptr;
}
// Returns the timeline of a stream that is not gpumem's own, has been seen before and does not capture; null for all
// others, and on an error. Compares the id: two driver calls.
stream_timeline* find_seen_timeline(CUstream handle) noexcept;
// For a free on a stream if the host has no memory for its timeline: waits for the stream and returns the host's key. A
// stream that captures cannot be waited for: memory freed on it never counts as complete.
stream_key wait_without_identity(CUstream handle) noexcept;
// Whether the stream captures a graph, however the capture was begun; asks the driver. Throws cuda_error.
bool is_capturing(CUstream handle);
} // namespace detail

/// A stream of gpumem's own: non-blocking, taken from a pool of streams and returned there by the destructor. The CUDA
/// stream is never destroyed before process exit, so its handle identifies it and is the fastest to look up. Move-only;
/// after a move from it, its functions throw std::invalid_argument. One thread at a time, as any stream.
export class stream : public stream_ref {
public:
  /// Throws cuda_error, std::bad_alloc. `priority` is that of the driver: lower is more urgent.
  explicit stream(gpumem::device where, int priority = 0);
  stream(stream&& other) noexcept;
  stream& operator=(stream&& other) noexcept;
  ~stream();

  /// Wraps a handle whose owner promises that it outlives every use by gpumem. It gets the fast path of an own stream.
  /// Throws std::invalid_argument for a default stream.
  [[nodiscard]] static stream adopt(CUstream handle);

  /// Returns the device of the stream.
  gpumem::device device() const;
  /// Returns the key by which resources know the stream.
  stream_key key() const;

  /// Waits on the host until all work enqueued so far is complete; throws cuda_error.
  void synchronize();

  /// Makes work enqueued from now on wait for the event; does nothing if that was never recorded. Throws cuda_error.
  void wait(event const& happened);
  using stream_ref::wait;

  /// Begins a capture that gpumem knows of: allocation on the stream fails until end_capture(), unless a capture_scope
  /// of the pool covers it. Throws cuda_error.
  void begin_capture(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  /// Ends the capture and returns its graph, which the caller owns. Throws cuda_error.
  [[nodiscard]] CUgraph end_capture();

private:
  stream(detail::stream_timeline& timeline, bool owned) noexcept;
  void retire() noexcept;
  detail::stream_timeline& timeline() const;
  detail::stream_timeline* timeline_;
  bool owned_;
};

} // namespace gpumem
