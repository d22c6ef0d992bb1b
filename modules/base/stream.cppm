// Streams: gpumem's own, which are never destroyed before exit, and the identity of every other.
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
/// What the library knows of a stream; opaque.
export using stream_timeline = detail::stream_timeline;
} // namespace extend

namespace detail {
stream_key wait_without_identity(CUstream handle) noexcept;
}

/// What handle 0 means. A call cannot see it: the caller was compiled with per-thread default streams or without.
export enum class default_stream : std::uint8_t {
  either,     ///< not said: memory freed on it goes to other streams once both possible streams have done their work
  legacy,     ///< the device's legacy stream, `cudaStreamLegacy`: one stream for all threads
  per_thread, ///< the calling thread's, `cudaStreamPerThread`
};
/// Says what handle 0 means in calls from now on; for the process. A program that says it shares memory across threads
/// (legacy) or streams (per_thread) sooner. At first it is `either`. Any thread.
export void set_default_stream(default_stream means) noexcept;

namespace extend {
/// How a request stands to others that wait for memory of the same resource.
export enum class queueing : std::uint8_t {
  none,     ///< it does not look at them, and may overtake them
  behind,   ///< it gets memory only if none of them waits
  admitted, ///< it has waited, and it is its turn: a refusal is not its end
};

/// A stream as a resource sees it: identified once, in the outermost call, and passed down.
export class stream_key {
public:
  /// The host: what is freed on it nobody uses any more, what is allocated on it may be touched by the host at once.
  static stream_key host() noexcept;
  /// Of an own or adopted stream.
  static inline stream_key of(stream_timeline& timeline, CUstream handle) noexcept {
    return {timeline, handle, true, timeline.capturing()};
  }

  inline std::uint64_t id() const noexcept { return timeline_->id(); }
  inline bool is_host() const noexcept { return timeline_->kind() == detail::stream_kind::host; }
  /// Whether the stream captures a graph; asked of the driver for streams that are not gpumem's own.
  inline bool capturing() const noexcept { return capturing_; }
  /// Whether the call was given the handle: a free by identity touches none.
  inline bool has_handle() const noexcept { return has_handle_; }
  inline CUstream handle() const noexcept { return handle_; }
  /// Whether a request may wait on the host, for a bounded time, for memory that is free but still in use.
  inline bool may_wait() const noexcept { return may_wait_; }
  inline stream_key waiting(bool may = true) const noexcept {
    auto key = *this;
    key.may_wait_ = may;
    return key;
  }
  inline queueing queues() const noexcept { return queueing_; }
  inline stream_key queueing_as(queueing how) const noexcept {
    auto key = *this;
    key.queueing_ = how;
    return key;
  }
  /// The same stream, without leave to touch the handle unless gpumem knows that it lives.
  stream_key by_identity() const noexcept;
  /// Of a stream that an object kept with its handle, which must still live. A thread's default stream seen from
  /// another thread, and a handle that is another stream's by now, are keys by identity.
  static inline stream_key at_end_of(stream_timeline& timeline, CUstream handle) noexcept {
    return timeline.owns_handle() ? of(timeline, handle) : at_end_of_other(timeline, handle);
  }

  inline stream_timeline& timeline() const noexcept { return *timeline_; }

  /// The end of a use: returns the epoch of the memory's tag. On a stream that may die this is where an event is
  /// recorded: at each of its first frees, then rarely, or always if `always`.
  [[gnu::always_inline]] inline epoch end_use(std::size_t bytes, bool always = false) const noexcept {
    if (!timeline_->is_mortal()) [[likely]]
      return timeline_->current_epoch();
    bool const may_record = has_handle_ && !capturing_;
    return timeline_->end_use(may_record ? std::optional{handle_} : std::nullopt, bytes, always);
  }

  /// Waits on the host for all work enqueued on the stream so far. The host's own key waits for nothing. Returns the
  /// driver's error; at once CUDA_ERROR_NOT_READY if the handle of a stream that may die may not be touched, and an
  /// error of capture if the stream captures. Never throws.
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

/// Identifies a stream for a resource on a device. Own and adopted streams by their handle (no driver call), others by
/// their id (two driver calls: id, capture). Handle 0 is another stream for each device and calling thread. Throws
/// std::invalid_argument for a default handle while another device is current, cuda_error. Any thread.
export stream_key identify(stream_ref handle, device where);

/// The same for a stream by itself: a default handle is the current device's.
export stream_key identify(stream_ref handle);
} // namespace extend

namespace detail {
// The timeline of an own or adopted stream, by its handle; null for others. No driver call.
inline stream_timeline* find_owned_timeline(CUstream handle) noexcept {
  return handle ? owned_handles.find(handle) : nullptr;
}
// The timeline of a stream that is not gpumem's own, has been seen before and captures nothing, by its id: two driver
// calls. Null for all others, and on an error.
stream_timeline* find_seen_timeline(CUstream handle) noexcept;
// The key of a free on a stream for which the host has no memory: after a wait for the stream the host's. Memory freed
// on a stream that captures, which cannot be waited for, is never seen complete.
stream_key wait_without_identity(CUstream handle) noexcept;
// Whether the stream captures a graph, however that was begun; asks the driver. Throws cuda_error.
bool is_capturing(CUstream handle);
} // namespace detail

/// A stream of gpumem's: non-blocking, out of a pool, given back at destruction and never destroyed before process
/// exit, so its handle is its identity and the fastest to look up. Move-only; one thread at a time, as any stream.
export class stream : public stream_ref {
public:
  /// Throws cuda_error, std::bad_alloc. Priority as the driver's: lower is more urgent.
  explicit stream(gpumem::device where, int priority = 0);
  stream(stream&& other) noexcept;
  stream& operator=(stream&& other) noexcept;
  ~stream();

  /// Wraps a handle whose owner promises that it outlives every use by gpumem, given the fast path of an own stream.
  /// Throws std::invalid_argument for a default stream.
  static stream adopt(CUstream handle);

  gpumem::device device() const;
  stream_key key() const noexcept;

  /// Waits on the host until all work enqueued so far is complete; throws cuda_error.
  void synchronize();

  /// Work enqueued from now on waits for the event; an event never recorded is no order. Throws cuda_error.
  void wait(event const& happened);
  using stream_ref::wait;

  /// Begins and ends a capture that gpumem knows of: allocation on the stream is refused meanwhile. The graph is the
  /// caller's. Throws cuda_error.
  void begin_capture(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUgraph end_capture();

private:
  stream(detail::stream_timeline& timeline, bool owned) noexcept;
  void retire() noexcept;
  detail::stream_timeline* timeline_;
  bool owned_;
};

} // namespace gpumem
