// The registry of all timelines.
// SPDX-License-Identifier: Apache-2.0
module;
#include <unordered_map>
export module gpumem:timeline_registry;
import :cuda;
import :device;
import :std;
import :stream_identity;
import :stream_timeline;
import :sync;
import :timeline_store;

namespace gpumem::detail {

/// Keeps the timelines of all streams that gpumem has seen. An own stream is one that gpumem made; the owner of an
/// adopted stream promises that it lives. Any other stream, except the default streams, is foreign. A foreign stream
/// has died when the driver gives its handle's value to another stream, whose id differs. A thread's default streams
/// die with the thread. The registry is never destroyed, since freed memory is tagged with pointers to timelines. Any
/// thread.
export class timeline_registry {
public:
  static timeline_registry& instance() noexcept;

  inline stream_timeline& host() noexcept { return host_; }
  /// Returns the timeline of the stream that now has this handle. Compares the driver's id of the stream, since a dead
  /// stream may have had the handle before. If the stream has no timeline, makes one or reuses that of a dead stream.
  /// Throws std::bad_alloc, cuda_error.
  stream_timeline& of_handle(CUstream handle);
  /// Returns the timeline of the last stream seen with this handle; if there is none, makes one without an id. This is
  /// for a stream that captures a graph: a query of its id would fail and end the capture. Throws std::bad_alloc,
  /// cuda_error.
  stream_timeline& of_capturing(CUstream handle, device where);
  /// The table `seen_handles` has room for a fixed number of handles. If it had none for this handle, returns the
  /// timeline of the last stream seen with the handle; otherwise null.
  stream_timeline* find_beyond_table(CUstream handle) const noexcept;
  /// Returns the timeline of a default stream of the device, which must be current. All threads share the timeline of
  /// the legacy stream; those of the per-thread stream and of handle 0 belong to the calling thread. Throws
  /// std::bad_alloc, cuda_error.
  stream_timeline& of_default(stream_kind kind, device where, CUstream handle, bool capturing = false);
  /// Records an event on each default stream of the calling thread that has frees after its last event. Only this
  /// thread can: on another thread, the same handle means another stream.
  static void cover_own_defaults() noexcept;
  /// Returns whether the timeline is that of one of the calling thread's default streams.
  static bool is_own_default(stream_timeline const& timeline) noexcept;
  /// Returns the timeline of an own stream that is not in use and does not capture; makes a stream if there is none.
  /// A stream that was given back may still capture, since another stream may have begun the capture that it joined.
  /// Throws cuda_error, std::bad_alloc.
  stream_timeline& acquire_own(device where, int priority);
  void release_own(stream_timeline& timeline) noexcept;
  /// Adds or removes one promise of the owner that the stream lives. While there is a promise, the stream counts as
  /// adopted.
  void adopt(stream_timeline& timeline, bool promised) noexcept;
  /// Between the two calls, own and adopted streams are not found by their handle alone. So each call asks the driver
  /// whether the stream captures. The timelines of the streams stay the same. A capture scope calls these functions,
  /// and so does a resource under simulator::checked.
  void begin_asking() noexcept { change_askers(1); }
  void end_asking() noexcept { change_askers(-1); }
  /// Returns the number of timelines.
  std::size_t size() const noexcept;

private:
  timeline_registry() = default;
  stream_timeline* find(CUstream handle) const noexcept __attribute__((requires_capability(mutex_)));
  void put(CUstream handle, stream_timeline& timeline) __attribute__((requires_capability(mutex_)));
  void change_askers(int by) noexcept;
  // Lets an own or adopted stream be found by its handle alone, unless each call asks. Otherwise hides it.
  void publish_owned(stream_timeline& timeline) noexcept __attribute__((requires_capability(mutex_)));
  static void end_thread() noexcept;

  mutable sync::mutex mutex_;
  timeline_store store_ __attribute__((guarded_by(mutex_)));
  // The timelines of streams for which the table `seen_handles` has no room, by handle.
  std::unordered_map<CUstream, stream_timeline*> others_ __attribute__((guarded_by(mutex_)));
  std::atomic<bool> any_others_{false};
  int askers_ __attribute__((guarded_by(mutex_))) = 0;
  std::vector<stream_timeline*> legacy_ __attribute__((guarded_by(mutex_))); // by device
  std::vector<stream_timeline*> idle_ __attribute__((guarded_by(mutex_)));   // of own streams that are not in use
  stream_timeline host_{stream_kind::host, 0, 0, -1, nullptr, nullptr, nullptr};
};

} // namespace gpumem::detail
