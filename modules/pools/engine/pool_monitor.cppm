// Publishes the statistics of all pools of the process: for other processes if the environment asks for it, and for a
// profiling tool that is attached.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
export module gpumem:pool_monitor;
import :intrusive_list;
import :nvtx_counters;
import :std;

namespace gpumem::detail {

/// Returns whether the environment variable GPUMEM_MONITOR is 1 or on; false if it is unset, empty, 0 or off. Throws
/// std::invalid_argument for any other value.
export bool is_monitored();

/// Returns whether pools are to be published: is_monitored(), or a tool takes counters. Throws as is_monitored() does.
export bool is_published();

/// The numbers of a pool that are published.
export struct monitored_numbers {
  statistics counted;
  std::uint64_t moves = 0; ///< times that free pages moved
  int device = -1;         ///< ordinal; -1: none
};

/// Publishes a pool as long as this object lives. Ten times a second the library thread reads the pool's statistics. If
/// is_monitored(), it writes them on a page of shared memory, which gpumem/monitor_page.hpp describes. The first pool
/// makes the page; the end of the process removes it. If there can be no page, a line on standard error says why, and
/// the page is left out. The thread also gives the numbers to a tool that takes NVTX's counters. Any thread.
export class monitored_pool {
public:
  using reader = monitored_numbers (*)(void* pool);

  /// `read(pool)` may throw. The name and the pool must outlive this object.
  monitored_pool(char const* name, reader read, void* pool);
  ~monitored_pool();
  monitored_pool(monitored_pool const&) = delete;
  monitored_pool& operator=(monitored_pool const&) = delete;

private:
  friend class intrusive_list<monitored_pool>;
  friend class pool_monitor;

  char const* const name_;
  reader const read_;
  void* const pool_;
  nvtx_counters const counters_;
  list_links<monitored_pool> links_;
};

} // namespace gpumem::detail
