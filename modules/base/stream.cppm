// The streams that gpumem makes, and the keys that identify any stream in calls of resources.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream;
import :cuda;
import :device;
import :error;
import :std;
import :stream_timeline;
import :timeline_registry;

namespace gpumem {

export class event;
export class stream;
export class allocation;
namespace extend {
export class holder;
export class stream_key;
export stream_key identify(stream_ref handle, device device);
export stream_key identify(stream_ref handle);
/// All that the library knows of a stream; opaque.
export using stream_timeline = detail::stream_timeline;
} // namespace extend

namespace detail {
stream_key wait_without_identity(CUstream handle) noexcept;
}

/// The meaning of handle 0. A call does not show it: it depends on whether the caller was compiled with per-thread
/// default streams.
export enum class default_stream : std::uint8_t {
  either,     ///< not known: other streams reuse memory freed on it once both possible streams have done their work
  legacy,     ///< the device's legacy stream, `cudaStreamLegacy`: one stream for all threads
  per_thread, ///< the calling thread's stream, `cudaStreamPerThread`
};
/// Sets what handle 0 means in all calls of the process from now on; initially `either`. Memory freed on handle 0 can
/// then be reused sooner: with `legacy` by other threads, with `per_thread` by other streams. Any thread.
export void set_default_stream(default_stream means) noexcept;

namespace extend {
/// How a request treats other requests that wait for memory of the same resource.
export enum class queueing : std::uint8_t {
  none,     ///< the request ignores them, and may overtake them
  behind,   ///< the request gets memory only if none of them waits; if it is exhausted, it may begin to wait
  once,     ///< as behind, but a refusal ends the request
  admitted, ///< the request has waited and has its turn now; if it is refused, it goes on waiting
};

/// A stream, as a call of a resource knows it: the first half of a stream_key.
export class identified_stream {
public:
  /// Returns the id that the driver gives to the stream; 0 for the host.
  inline std::uint64_t id() const noexcept { return timeline_->id(); }
  /// Returns whether this is the host.
  inline bool is_host() const noexcept { return timeline_->kind() == detail::stream_kind::host; }
  /// Returns whether the stream was capturing a graph when it was identified. For a stream that gpumem made or adopted,
  /// only a capture that was begun through gpumem counts, unless the key comes from stream_key::asked(). For all others
  /// the driver was asked.
  inline bool capturing() const noexcept { return capturing_ != 0; }
  /// Returns whether a call may use the handle. Returns false if the stream may have been destroyed, for a default
  /// stream of another thread, and for the host.
  inline bool has_handle() const noexcept { return has_handle_ != 0; }
  /// Returns the handle, which may be used only if has_handle().
  inline CUstream handle() const noexcept { return handle_; }
  /// Returns what the library knows of the stream: its timeline.
  inline stream_timeline& timeline() const noexcept { return *timeline_; }

  /// Ends a use of memory on the stream. Returns the epoch with which the memory is tagged. The use is over once an
  /// event of this epoch is complete. On a mortal stream this function records an event at each of the stream's first
  /// 64 frees, and more rarely later. If `always`, it records one at every call. If the stream captures, the next call
  /// outside the capture does.
  [[gnu::always_inline]] inline epoch end_use(std::size_t bytes, bool always = false) const noexcept {
    if (!timeline_->is_mortal()) [[likely]]
      return timeline_->current_epoch();
    if (capturing_) [[unlikely]]
      return timeline_->end_use_in_capture();
    return timeline_->end_use(has_handle_ ? std::optional{handle_} : std::nullopt, bytes, always);
  }

  /// Waits on the host for all work enqueued on the stream so far. For the host, does nothing. Returns the driver's
  /// error. If there is no handle and the stream may have been destroyed, does not wait and returns
  /// CUDA_ERROR_NOT_READY. If the stream captures, does not wait and returns an error of capture. Never throws.
  CUresult wait_on_host() const noexcept;

private:
  friend class stream_key;
  inline identified_stream(stream_timeline& timeline, CUstream handle, bool has_handle, bool capturing) noexcept
      : timeline_{&timeline}, handle_{handle}, has_handle_{has_handle}, capturing_{capturing} {}

  stream_timeline* timeline_;
  CUstream handle_;
  std::uint32_t has_handle_; // as wide as the class: each request copies its key, and padding with it
  std::uint32_t capturing_;
};

/// The terms that the caller of a resource sets for a call: the second half of a stream_key.
export class call_context {
public:
  /// Returns whether a request may wait on the host, for a bounded time, for memory that was freed but that streams
  /// still use.
  inline bool may_wait() const noexcept { return may_wait_; }
  /// Returns how the request treats requests that wait.
  inline queueing queues() const noexcept { return queueing_; }
  /// Returns whether the request gets memory only if no other request waits.
  inline bool is_behind() const noexcept { return queueing_ == queueing::behind || queueing_ == queueing::once; }
  /// Returns whether a refusal for this reason ends the request, so that it counts as a failure. Otherwise the request
  /// may wait, or its caller goes on. `can_wait`: whether the resource lets requests wait.
  inline bool ends_if(outcome reason, bool can_wait = true) const noexcept {
    bool const waits = queueing_ == queueing::behind && reason == outcome::exhausted && can_wait;
    return queueing_ != queueing::admitted && !waits && !goes_on_after(reason);
  }
  /// Returns whether the caller asks elsewhere, or asks again, after a refusal for this reason.
  inline bool goes_on_after(outcome reason) const noexcept {
    return is_trial_ && (reason == outcome::exhausted || reason == outcome::too_large);
  }
  /// Returns whether the request is for a chunk of graph memory. The option `largest_block` of a pool bounds the blocks
  /// in such a chunk, not the chunk.
  inline bool for_chunk() const noexcept { return for_chunk_; }
  /// Returns the holder that counts the bytes of this call as its own; null if none does.
  inline holder* unit() const noexcept { return unit_; }

private:
  friend class stream_key;
  bool may_wait_ = false;
  bool for_chunk_ = false;
  bool is_trial_ = false;
  queueing queueing_ = queueing::none;
  holder* unit_ = nullptr;
};

/// Identifies a stream in calls of resources, and says what the call permits. The outermost call makes the key and
/// passes it on to the upstreams.
export class stream_key {
public:
  /// Returns the key of the host. If memory is freed with this key, all its uses are over. If memory is allocated with
  /// this key, the host can use it immediately.
  static stream_key host() noexcept;
  /// Returns the key of a stream that gpumem made or adopted (see stream::adopt()), or of another stream that is known
  /// not to capture a graph. `timeline` is the library's record of the stream.
  static inline stream_key of(stream_timeline& timeline, CUstream handle) noexcept {
    return {timeline, handle, true, timeline.capturing()};
  }
  /// Returns the key of a stream for an object that has kept the stream's timeline and handle. The handle must still be
  /// valid. has_handle() of its stream is false for a default stream of another thread, and if another stream has the
  /// handle by now. On a lost device, has_handle() can also be false.
  static inline stream_key at_end_of(stream_timeline& timeline, CUstream handle) noexcept {
    bool const known = timeline.owns_handle() && !detail::owned_handles_hidden.load(std::memory_order_relaxed);
    return known ? of(timeline, handle) : at_end_of_other(timeline, handle);
  }

  /// Returns the stream.
  inline identified_stream const& identity() const noexcept { return identity_; }
  /// Returns what the caller permits and expects.
  inline call_context const& context() const noexcept { return context_; }

  /// Asks the driver whether a stream that gpumem made or adopted captures, since a capture may have been begun on its
  /// raw handle. Returns a copy of this key with the answer. Asks nothing if the key knows of a capture, for all other
  /// streams, and on a lost device. An error counts as a capture.
  inline stream_key asked() const noexcept {
    bool const asks = identity_.timeline().owns_handle() && identity_.has_handle() && !identity_.capturing();
    return asks ? ask_driver() : *this;
  }
  /// Returns a key of the same stream for use after the current call, when the stream may have been destroyed.
  /// has_handle() of its stream is true only if gpumem made or adopted the stream.
  stream_key by_identity() const noexcept;
  /// Returns a copy of this key, with or without the permission to wait.
  inline stream_key with_waiting(bool may = true) const noexcept {
    auto key = *this;
    key.context_.may_wait_ = may;
    return key;
  }
  /// Returns a copy of this key for a call after which the caller asks elsewhere, or asks again, if there is no memory.
  inline stream_key as_trial() const noexcept {
    auto key = *this;
    key.context_.is_trial_ = true;
    return key;
  }
  /// Returns a copy of this key, with another treatment of requests that wait.
  inline stream_key queueing_as(queueing queueing) const noexcept {
    auto key = *this;
    key.context_.queueing_ = queueing;
    return key;
  }
  /// Returns a copy of this key, for a request for a chunk of graph memory.
  inline stream_key as_chunk() const noexcept {
    auto key = *this;
    key.context_.for_chunk_ = true;
    return key;
  }
  /// Returns a copy of this key for a call of `unit`. If another holder counts the bytes already, the copy names that
  /// one.
  inline stream_key for_unit(holder& unit) const noexcept {
    auto key = *this;
    if (!key.context_.unit_) key.context_.unit_ = &unit;
    return key;
  }
  /// Returns a copy of this key that names no holder, for calls of a resource on its own behalf.
  inline stream_key for_no_unit() const noexcept {
    auto key = *this;
    key.context_.unit_ = nullptr;
    return key;
  }

  /// Returns whether both keys are of the same stream.
  friend bool operator==(stream_key const& a, stream_key const& b) noexcept {
    return &a.identity_.timeline() == &b.identity_.timeline();
  }

private:
  stream_key ask_driver() const noexcept;
  static stream_key at_end_of_other(stream_timeline& timeline, CUstream handle) noexcept;
  friend class gpumem::stream;
  friend class gpumem::allocation;
  friend stream_key identify(stream_ref, device);
  friend stream_key identify(stream_ref);
  friend stream_key detail::wait_without_identity(CUstream) noexcept;
  inline stream_key(stream_timeline& timeline, CUstream handle, bool has_handle, bool capturing) noexcept
      : identity_{timeline, handle, has_handle, capturing} {}

  identified_stream identity_;
  call_context context_;
};

/// Identifies a stream for a resource on a device. A stream that gpumem made or adopted is known by its handle, without
/// a driver call. All others are known by their id. That takes two driver calls: one returns the id, the other tells
/// whether the stream captures a graph. While a capture_scope is open (a pool then serves a graph capture), the driver
/// is asked of all streams whether they capture. Handle 0 is a different stream for each device and calling thread.
/// Throws cuda_error, and std::invalid_argument for a default handle while another device is current and for a stream
/// object that was moved from. Any thread.
export stream_key identify(stream_ref handle, device device);

/// Identifies a stream without a resource: a default handle means the default stream of the current device.
export stream_key identify(stream_ref handle);
} // namespace extend

namespace detail {
// Returns the timeline of a stream that gpumem made or adopted. Returns null for others and while a capture scope is
// open.
inline stream_timeline* find_owned_timeline(CUstream handle) noexcept {
  return handle ? owned_handles.find(handle) : nullptr;
}
// Returns the timeline of a stream that has been seen before and does not capture. Returns null for all others, and on
// an error. Asks the driver whether the stream captures and, unless gpumem made or adopted the stream, for its id.
stream_timeline* find_seen_timeline(CUstream handle) noexcept;
// Called for a free on a stream that has no timeline, if the host has no memory to make one. Waits for the stream and
// returns the host's key. If the stream captures, it cannot be waited for: memory freed with the returned key stays in
// use for ever.
stream_key wait_without_identity(CUstream handle) noexcept;
// Returns whether the stream captures a graph, however the capture was begun. Asks the driver. Throws cuda_error.
bool is_capturing(CUstream handle);
// Returns the handle of a stream object that was moved from, as CCCL's cuda::stream has it. The driver must not get it.
inline CUstream moved_from_handle() noexcept {
  return reinterpret_cast<CUstream>(~std::uintptr_t{0}); // NOLINT(performance-no-int-to-ptr)
}
} // namespace detail

/// Records an event on the stream, unless one covers all earlier frees on it already. Only a call that is given
/// the handle can do that, since gpumem keeps no handle of a stream that it neither made nor adopted. Without
/// the event, a pool that has lost its last handle may keep memory that was freed on the stream. Call it before the
/// last handle goes, or before the stream is destroyed. It serves all pools. Does nothing for streams on which gpumem
/// needs no such call. Throws cuda_error, std::bad_alloc. If the stream captures, throws acquire_error with
/// outcome::capture_unsupported. Any thread.
export void cover_frees(stream_ref stream);

/// A stream that gpumem makes: non-blocking, taken from a pool of streams and returned there by the destructor. The
/// CUDA stream is never destroyed before process exit. So its handle identifies it, and such a stream is the fastest to
/// look up.
///
/// The destructor ends a capture that begin_capture() began and that is still open, and destroys its graph. It does not
/// end other captures, nor one that only another thread may end. While a stream captures, no new object gets it.
///
/// Move-only. After a move from it, the functions of this class throw std::invalid_argument, the handle is that of an
/// empty cuda::stream, and resources refuse the stream. One thread at a time.
export class stream : public stream_ref {
public:
  /// Throws cuda_error, std::bad_alloc. `priority` is the driver's stream priority: a lower number is more urgent.
  explicit stream(gpumem::device device, int priority = 0);
  stream(stream&& other) noexcept;
  stream& operator=(stream&& other) noexcept;
  ~stream();

  /// Wraps a handle whose owner promises that the stream outlives every use by gpumem. The stream is then looked up as
  /// fast as one that gpumem made. Throws std::invalid_argument for a default stream.
  [[nodiscard]] static stream adopt(CUstream handle);

  /// Returns the device of the stream.
  gpumem::device device() const;
  /// Returns the key by which resources know the stream.
  stream_key key() const;

  /// Waits on the host until all work enqueued so far is complete. Throws cuda_error.
  void synchronize();

  /// Makes work enqueued from now on wait for the event; does nothing if the event was never recorded. Throws
  /// cuda_error.
  void wait(event const& event);
  using stream_ref::wait;

  /// Begins a capture and makes it known to gpumem. Allocation on the stream fails until end_capture(), unless a
  /// capture_scope of the pool covers the stream. Throws cuda_error.
  void begin_capture(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  /// Ends the capture and returns its graph, which the caller owns. Throws cuda_error.
  [[nodiscard]] CUgraph end_capture();

private:
  stream(detail::stream_timeline& timeline, bool owned) noexcept;
  void retire() noexcept;
  void end_own_capture() noexcept;
  detail::stream_timeline& timeline() const;
  detail::stream_timeline* timeline_;
  std::uint64_t capture_ = 0; // the driver's id of the capture that begin_capture() began
  bool owned_;
};

} // namespace gpumem
