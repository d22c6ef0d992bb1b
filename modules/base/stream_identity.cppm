// The identity of one stream: its kind, its handle, the driver's id of it, and its device.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_identity;
import :cuda;
import :std;

namespace gpumem::detail {

/// The kinds of streams, by how long the handle of a stream is valid.
export enum class stream_kind : std::uint8_t {
  own,        ///< made by gpumem, never destroyed
  adopted,    ///< a stream whose owner has promised that it lives
  legacy,     ///< cudaStreamLegacy of a device
  foreign,    ///< a stream that may die at any time: its handle is used only inside a call that gets it
  per_thread, ///< cudaStreamPerThread of a thread
  null,       ///< handle 0 of one thread: which stream that is depends on how the caller was compiled
  host,       ///< the host itself: it frees only memory that is not in use, and can use new memory immediately
};

/// The identity of one stream. Its index, device and context never change. Once the stream is dead, timeline_registry,
/// which finds the identity of each stream, can give the identity to a new stream. That changes the kind, the id and
/// the handle.
export class stream_identity {
public:
  stream_identity(stream_kind kind, std::uint32_t index, std::uint64_t id, int device, CUcontext context,
                  CUstream handle) noexcept
      : kind_{kind}, index_{index}, id_{id}, device_{device}, context_{context}, handle_{handle} {}
  stream_identity(stream_identity const&) = delete;
  stream_identity& operator=(stream_identity const&) = delete;

  inline stream_kind kind() const noexcept { return kind_.load(std::memory_order_relaxed); }
  // Returns a number that no other identity of the process has. Such numbers are small and dense.
  inline std::uint32_t index() const noexcept { return index_; }
  // Returns the driver's id, which it never gives to another stream; 0 for the legacy stream and for handle 0.
  inline std::uint64_t id() const noexcept { return id_.load(std::memory_order_acquire); }
  // Sets the id of a stream that has none yet.
  inline void name(std::uint64_t id) noexcept { id_.store(id, std::memory_order_release); }
  inline int device() const noexcept { return device_; }
  inline CUcontext context() const noexcept { return context_; }
  inline CUstream handle() const noexcept { return handle_.load(std::memory_order_relaxed); }
  // Returns whether the handle may be used outside a call that gets it.
  inline bool owns_handle() const noexcept { return kind() <= stream_kind::adopted; }
  // Returns whether the stream may die at any time, so that its handle is used only inside a call that gets it.
  inline bool is_mortal() const noexcept { return kind() >= stream_kind::foreign && kind() <= stream_kind::null; }
  inline int priority() const noexcept { return priority_; }
  void set_priority(int priority) noexcept { priority_ = priority; }
  // Returns whether the stream captures, if the capture was begun through gpumem; only the driver knows of others.
  inline bool capturing() const noexcept { return capturing_.load(std::memory_order_relaxed); }
  void set_capturing(bool capturing) noexcept { capturing_.store(capturing, std::memory_order_relaxed); }

  // Returns the stream on which events are recorded for a call that got `caller_handle`: that handle, but for handle 0
  // the per-thread stream.
  CUstream recorded_on(CUstream caller_handle) const noexcept;
  // Asks the driver whether the stream of the handle captures, so that its events would belong to a graph. Returns true
  // on an error as well.
  bool captures(CUstream caller_handle) const noexcept;
  // Returns whether the driver can still be called for the stream: the driver is not gone, and the device is not lost.
  bool is_usable() const noexcept;
  // Asks the driver whether the device was reset, and if so marks it as lost. The handles of events from before the
  // reset may name other events by now.
  bool was_reset() const noexcept;

protected:
  // Gives the identity to another stream of the same context.
  void reassign(stream_kind kind, std::uint64_t id, CUstream handle) noexcept;
  // Adds or removes one promise of a user that the stream lives. One call at a time.
  void change_promises(bool promised) noexcept;

private:
  std::atomic<stream_kind> kind_;
  std::uint32_t const index_;
  std::atomic<std::uint64_t> id_;
  int const device_;
  CUcontext const context_;
  std::atomic<CUstream> handle_;
  int priority_ = 0;
  int promises_ = 0;
  std::atomic<bool> capturing_{false};
};

/// Returns the id of the capture in which the stream takes part; 0 if there is none, and on an error. Asks the driver,
/// which does not end the capture. `handle` must not be that of a default stream. Any thread.
export std::uint64_t id_of_capture(CUstream handle) noexcept;

} // namespace gpumem::detail
