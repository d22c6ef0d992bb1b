// The timelines of all streams: one a stream, which serves another stream once its own has died.
// SPDX-License-Identifier: Apache-2.0
module;
#include <unordered_map>
export module gpumem:timeline_registry;
import :cuda;
import :device;
import :std;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// Every stream ever seen. A foreign stream has died when the driver gives its handle's value to another one, whose id
/// differs; a thread's default streams die with the thread. Leaked on purpose: tags keep pointers to timelines. Any
/// thread.
export class timeline_registry {
public:
  static timeline_registry& instance() noexcept;

  inline stream_timeline& host() noexcept { return host_; }
  /// The timeline of the stream that has this handle and id. Makes one, or takes that of a dead stream, if there is
  /// none. Throws std::bad_alloc, cuda_error.
  stream_timeline& of_handle(CUstream handle);
  /// The timeline of the last stream seen with a handle for which the table of handles has no place; null if none.
  stream_timeline* find_beyond_table(CUstream handle) const noexcept;
  /// The timeline of a default stream of the device, which is current: the legacy stream's is one for all threads, the
  /// others are the calling thread's. Throws std::bad_alloc, cuda_error.
  stream_timeline& of_default(stream_kind kind, device where, CUstream handle);
  /// Covers what was freed on the calling thread's default streams, whose handles this thread may touch at any time.
  static void cover_own_defaults() noexcept;
  /// Whether the timeline is one of the calling thread's default streams.
  static bool is_own_default(stream_timeline const& timeline) noexcept;
  /// The timeline of an own stream that is not in use. Makes the stream if there is none. Throws cuda_error,
  /// std::bad_alloc.
  stream_timeline& acquire_own(device where, int priority);
  void release_own(stream_timeline& timeline) noexcept;
  /// One more promise that the stream lives, or one less.
  void adopt(stream_timeline& timeline, bool promised) noexcept;
  /// How many timelines there are.
  std::size_t size() const noexcept;

private:
  struct list {
    stream_timeline* first = nullptr;
    stream_timeline* last = nullptr;
    void push_front(stream_timeline& one) noexcept;
    void push_back(stream_timeline& one) noexcept;
    stream_timeline& pop() noexcept;
  };
  timeline_registry() = default;
  stream_timeline* find(CUstream handle) const noexcept;
  void put(CUstream handle, stream_timeline& timeline);
  stream_timeline& take(stream_kind kind, std::uint64_t id, int device, CUcontext context, CUstream handle);
  stream_timeline* take_dead(CUcontext context) noexcept;
  stream_timeline* take_spare(CUcontext context) noexcept;
  stream_timeline& make(stream_kind kind, std::uint64_t id, int device, CUcontext context, CUstream handle,
                        bool may_die);
  void make_spares(int device, CUcontext context) noexcept;
  void retire(stream_timeline& dead) noexcept;
  static void end_thread() noexcept;

  mutable sync::mutex mutex_;
  std::vector<std::unique_ptr<stream_timeline>> timelines_;
  std::unordered_map<CUstream, stream_timeline*> others_; // those for which the table of handles has no place
  std::atomic<bool> any_others_{false};
  std::vector<stream_timeline*> legacy_; // by device
  std::vector<stream_timeline*> idle_;   // of own streams
  list dead_;                            // newest first: may serve other streams once they are over
  list spare_;                           // never used, for a free while the host has no memory
  std::size_t stranded_ = 0;             // of dead streams with frees that no event covers
  std::size_t stranded_bytes_ = 0;
  stream_timeline host_{stream_kind::host, 0, 0, -1, nullptr, nullptr, nullptr};
};

} // namespace gpumem::detail
