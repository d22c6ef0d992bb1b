// Shows the numbers of a pool to profiling tools, by way of NVTX, NVIDIA's interface to tools.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
export module gpumem:nvtx_counters;
import :std;

namespace gpumem::detail {

/// The counters of one pool in a profiling tool: its live, reserved and cached bytes, and the requests that wait. NVTX
/// has no end of a counter (nvToolsExtCounters.h), so the counters of a pool that has ended stay in the tool.
export class nvtx_counters {
public:
  /// Returns whether a tool that takes counters is attached to the process; false in a build without NVTX's headers.
  /// The first call loads the tool. Any thread.
  static bool tool_listens() noexcept;

  /// Registers the counters of the pool with this name. Does nothing if no tool listens. Throws std::bad_alloc.
  explicit nvtx_counters(char const* pool);
  /// Gives the tool the numbers of now. One thread at a time.
  void sample(statistics const& numbers) const noexcept;

private:
  std::array<std::uint64_t, 4> ids_{}; // of the tool; 0: it has refused the counter
};

} // namespace gpumem::detail
