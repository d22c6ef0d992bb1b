// All timelines of the process: the registry that makes and reuses them, and each thread's table that finds them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <unordered_map>
export module gpumem:timeline_registry;
import :cuda;
import :device;
import :hash;
import :intrusive_list;
import :std;
import :stream_identity;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// A hash table of timelines that is read without a lock. A key is never removed, so a search finds every key that was
/// written. The timeline of a key can be replaced or set to null. At least half of the slots stay empty, so that
/// searches are short.
export template <class Key> class timeline_table {
public:
  /// Returns the timeline of the key; null if there is none. `key` must not be null. Any thread.
  inline stream_timeline* find(Key key) const noexcept {
    for (std::size_t i = slot_of(key);; i = (i + 1) % size) {
      auto const seen = slots_[i].key.load(std::memory_order_acquire);
      if (seen == key) return slots_[i].timeline.load(std::memory_order_acquire);
      if (!seen) return nullptr;
    }
  }

  /// Sets the timeline of the key. Returns false if the table is full. Called under the lock of the timeline_registry.
  inline bool put(Key key, stream_timeline* timeline) noexcept {
    for (std::size_t i = slot_of(key);; i = (i + 1) % size) {
      auto const seen = slots_[i].key.load(std::memory_order_relaxed);
      if (seen && seen != key) continue;
      if (!seen && used_ == size / 2) return false;
      if (!seen) ++used_;
      slots_[i].timeline.store(timeline, std::memory_order_release);
      slots_[i].key.store(key, std::memory_order_release);
      return true;
    }
  }

private:
  static constexpr unsigned size_log2 = 13;
  static constexpr std::size_t size = std::size_t{1} << size_log2;
  static inline std::size_t slot_of(Key key) noexcept {
    return fibonacci_hash(std::bit_cast<std::uint64_t>(key)) >> (64 - size_log2);
  }
  struct slot {
    std::atomic<Key> key{};
    std::atomic<stream_timeline*> timeline{nullptr};
  };
  std::array<slot, size> slots_{};
  std::size_t used_ = 0;
};

/// The streams that gpumem made or adopted, by handle. If the table is full, further streams are identified more
/// slowly, as all other streams are.
export inline constinit timeline_table<CUstream> owned_handles;
/// Set while a capture scope is open (the time in which a pool serves a capture from the graph's memory), and while a
/// resource is under simulator::checked. Meanwhile all timelines of the table above are null, so its find() returns
/// null, and gpumem asks the driver whether the stream captures. Only the driver knows of a capture that was begun on a
/// raw handle.
export inline constinit std::atomic<bool> owned_handles_hidden{false};
/// All streams seen, by handle. If a stream was destroyed, another stream may have its handle by now, so callers
/// compare the ids. If the table is full, the timeline_registry finds further streams.
export inline constinit timeline_table<CUstream> seen_handles;

/// Makes timelines and keeps them. The timeline of a dead stream serves another stream of the same context once all
/// work of the dead stream is known to be complete. Not thread-safe: guarded by the lock of the timeline_registry.
export class timeline_store {
public:
  // Returns a timeline for a stream that may die. Reuses the timeline of a dead stream if a few tries find one that can
  // be reused; otherwise makes a timeline. Throws std::bad_alloc, cuda_error.
  stream_timeline& take(stream_kind kind, std::uint64_t id, int device, CUcontext context, CUstream handle);
  // Makes a timeline. `may_die`: whether the stream may die at any time. Throws std::bad_alloc, cuda_error.
  stream_timeline& make(stream_kind kind, std::uint64_t id, int device, CUcontext context, CUstream handle,
                        bool may_die);
  // Takes over the timeline of a stream that has died, for reuse.
  void retire(stream_timeline& dead) noexcept;
  inline std::vector<std::unique_ptr<stream_timeline>> const& timelines() const noexcept { return timelines_; }

private:
  stream_timeline* take_dead(CUcontext context) noexcept;
  stream_timeline* take_spare(CUcontext context) noexcept;
  void make_spares(int device, CUcontext context) noexcept;

  std::vector<std::unique_ptr<stream_timeline>> timelines_;
  intrusive_list<stream_timeline> dead_;  // newest first
  intrusive_list<stream_timeline> spare_; // not used yet; for a new stream while the host has no memory
  std::size_t stranded_ = 0;              // number of dead streams with frees after which no event was recorded
  std::size_t stranded_bytes_ = 0;        // bytes of these frees
};

/// Keeps the timelines of all streams that gpumem has seen. A foreign stream is dead when the driver gives its handle's
/// value to another stream, whose id differs. A thread's default streams die with the thread. The registry is never
/// destroyed, since freed memory is tagged with pointers to timelines. Any thread.
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
  stream_timeline& of_capturing(CUstream handle, device device);
  /// The table `seen_handles` has room for a fixed number of handles. If it had none for this handle, returns the
  /// timeline of the last stream seen with the handle; otherwise null.
  stream_timeline* find_beyond_table(CUstream handle) const noexcept;
  /// Returns the timeline of a default stream of the device, which must be current. All threads share the timeline of
  /// the legacy stream; those of the per-thread stream and of handle 0 belong to the calling thread. Throws
  /// std::bad_alloc, cuda_error.
  stream_timeline& of_default(stream_kind kind, device device, CUstream handle, bool capturing = false);
  /// Records an event on each default stream of the calling thread that has frees after its last event. Only this
  /// thread can: on another thread, the same handle means another stream.
  static void cover_own_defaults() noexcept;
  /// Returns whether the timeline is that of one of the calling thread's default streams.
  static bool is_own_default(stream_timeline const& timeline) noexcept;
  /// Returns the timeline of an own stream that is not in use and does not capture; makes a stream if there is none.
  /// A stream that was given back may still capture, since another stream may have begun the capture that it joined.
  /// Throws cuda_error, std::bad_alloc.
  stream_timeline& take_own(device device, int priority);
  void return_own(stream_timeline& timeline) noexcept;
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
  stream_timeline* find(CUstream handle) const noexcept GPUMEM_REQUIRES(mutex_);
  void put(CUstream handle, stream_timeline& timeline) GPUMEM_REQUIRES(mutex_);
  void change_askers(int change) noexcept;
  // Lets an own or adopted stream be found by its handle alone, unless each call asks. Otherwise hides it.
  void publish_owned(stream_timeline& timeline) noexcept GPUMEM_REQUIRES(mutex_);
  static void end_thread() noexcept;

  mutable sync::mutex mutex_;
  timeline_store store_ GPUMEM_GUARDED_BY(mutex_);
  // The timelines of streams for which the table `seen_handles` has no room, by handle.
  std::unordered_map<CUstream, stream_timeline*> other_streams_ GPUMEM_GUARDED_BY(mutex_);
  std::atomic<bool> has_other_streams_{false};
  int askers_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::vector<stream_timeline*> legacy_ GPUMEM_GUARDED_BY(mutex_); // by device
  std::vector<stream_timeline*> idle_ GPUMEM_GUARDED_BY(mutex_);   // of own streams that are not in use
  stream_timeline host_{stream_kind::host, 0, 0, -1, nullptr, nullptr, nullptr};
};

} // namespace gpumem::detail
