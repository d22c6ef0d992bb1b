// How a pool has served an allocation, and the watchers that it tells of the memory that it has.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <algorithm>
#include <cstdint>
#include <vector>
export module gpumem:memory_watcher;
import :std;
import :sync;

namespace gpumem::extend {

/// How a pool has served an allocation.
export enum class served_by : std::uint8_t {
  unknown,      ///< the resource does not say
  thread_cache, ///< the thread's cache had a block
  same_stream,  ///< the request's stream had freed the memory
  ordered,      ///< another stream had freed the memory, and its work is ordered before that of the request's stream
  completed,    ///< the work on the memory was complete
  stream_wait,  ///< the request's stream waits on the device for the work on the memory
  new_memory,   ///< the pool has grown, or has moved pages
  turn,         ///< the request has waited in the pool's queue
};

} // namespace gpumem::extend

namespace gpumem::detail {

/// How a pool has served the calling thread's last allocation for which the thread cache had no block. A caller that
/// wants to know sets it before the call, so that a hit of a thread cache need not write it.
export inline constinit thread_local extend::served_by last_served = extend::served_by::unknown;

/// Is told of the pages or chunks of a pool. The calls come from any thread, one at a time, and must not call the pool.
export class memory_watcher {
public:
  /// The pool has got memory.
  virtual void on_mapped(void const* base, std::size_t bytes) noexcept = 0;
  /// The pool is about to give memory back.
  virtual void on_unmapping(void const* base, std::size_t bytes) noexcept = 0;
  /// The pool has moved pages.
  virtual void on_moved(void const* source, void const* target, std::size_t bytes) noexcept = 0;

protected:
  ~memory_watcher() = default;
};

/// The watchers of one pool. Any thread.
export class memory_watchers {
public:
  /// Adds a watcher. Returns false if it was added already, as by an adaptor whose two upstreams lead to the same pool.
  /// Throws std::bad_alloc.
  bool add(memory_watcher& watcher) {
    sync::lock const lock{mutex_};
    if (std::ranges::find(all_, &watcher) != all_.end()) return false;
    all_.push_back(&watcher);
    return true;
  }
  /// Removes a watcher. No call to it runs or begins afterwards.
  void remove(memory_watcher& watcher) noexcept {
    sync::lock const lock{mutex_};
    std::erase(all_, &watcher);
  }
  /// Calls `tell(watcher)` for each watcher.
  template <class Tell> void each(Tell tell) noexcept {
    sync::lock const lock{mutex_};
    for (auto* const watcher : all_) tell(*watcher);
  }

private:
  sync::mutex mutex_;
  std::vector<memory_watcher*> all_ GPUMEM_GUARDED_BY(mutex_);
};

} // namespace gpumem::detail
