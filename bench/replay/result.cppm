// The result of one trace over one resource; results as tables for people, and as JSON for programs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>
export module replay:result;

namespace replay {

/// Nanoseconds of one call, including the clock.
export struct call_times {
  double p50 = 0;
  double p99 = 0;
  double max = 0;
  double clock = 0; ///< the part that reading the clock takes
};

/// Device time of a pass with the kernels of `--work`, divided by that of the same kernels on preallocated memory.
export struct device_time_ratios {
  double cold = 0;
  double warm = 0; ///< median
  double preallocated_milliseconds = 0;
};

/// The time of a pass at the recorded pace, and the share of it that the calls took. The clock's cost is subtracted
/// from each call.
export struct pace_times {
  double share_cold = 0;   ///< the calls' share of the pass's time
  double share_warm = 0;   ///< median
  double seconds_warm = 0; ///< of a pass, median: equals the recorded time unless calls delay it
};

/// All measured times; empty on a simulated device.
export struct measured_times {
  double cold = 0; ///< ns per operation and thread; at the recorded pace, of the calls alone
  double warm = 0; ///< the same, median of the warm passes
  call_times call;
  std::optional<device_time_ratios> device_time;
  std::optional<pace_times> pace;
};

export struct result {
  std::string trace;
  std::string file;
  std::string resource;
  std::string device;
  unsigned threads = 1;
  unsigned warm_passes = 0;
  bool foreign_streams = false;
  double work_microseconds = 0; ///< 0: none
  unsigned work_every = 0;
  std::uint64_t frees_elsewhere = 0; ///< frees on another stream than the allocation
  double recorded_seconds = 0;       ///< of the trace, if it was replayed at the recorded pace; 0: at full pace
  std::uint64_t limit_bytes = 0;     ///< 0: none
  std::uint64_t operations = 0;      ///< of one pass of one thread
  std::uint64_t streams = 0;         ///< of one thread
  std::optional<measured_times> times;
  double driver_calls_cold = 0; ///< per 1,000 operations, without the kernels of `--work`
  double driver_calls_warm = 0;
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t counted_live_bytes = 0; ///< the resource's own count of the peak
  std::uint64_t peak_reserved_bytes = 0;
  std::vector<std::uint64_t> peaks_by_pass;  ///< the same of each pass, the cold one first; of a peer since its start
  std::uint64_t suggested_initial_bytes = 0; ///< see suggested_initial_size()
  /// The share of the free bytes that was outside the largest free range when the most bytes were reserved, in a cold
  /// pass. Empty if the resource does not know its free ranges.
  std::optional<double> fragmentation;
  std::uint64_t failures = 0;           ///< failed allocations of cold and warm passes, all threads
  std::uint64_t blocks_live_at_end = 0; ///< blocks that the trace leaves live; of one pass of one thread
  std::uint64_t recorded_failures = 0;

  /// Returns peak live / peak reserved; 0 if nothing was reserved.
  double utilization() const {
    return peak_reserved_bytes == 0 ? 0
                                    : static_cast<double>(peak_live_bytes) / static_cast<double>(peak_reserved_bytes);
  }
};

/// Returns 80 % of `peak_live`, rounded up to whole pages of 2 MiB: a pool_options::initial_size that saves most of the
/// growth, and that a smaller run needs too.
export inline std::uint64_t suggested_initial_size(std::uint64_t peak_live) {
  constexpr std::uint64_t page = std::uint64_t{2} << 20;
  std::uint64_t const wanted = peak_live - peak_live / 5;
  return wanted / page * page + (wanted % page == 0 ? 0 : page);
}

/// Returns the nearest-rank percentile for `fraction`; 0 if there are no values. Reorders the values.
export template <class Value> Value percentile(std::span<Value> values, double fraction) {
  if (values.empty()) return {};
  auto const rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  auto const at = values.begin() + static_cast<std::ptrdiff_t>(std::clamp<std::size_t>(rank, 1, values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Returns the median; the mean of the two middle values for an even number of them. 0 if there are no values.
export inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  std::size_t const middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Returns one table per resource, with one row per trace. Columns without any value are left out.
export std::string format_tables(std::span<result const> results);

/// Returns an array with one object per trace and resource. Field names include the units; values that were not
/// measured are absent.
export std::string format_json(std::span<result const> results);

/// Writes `text` to `path` atomically: writes a temporary file beside it and renames that. Throws std::runtime_error
/// with the path.
export void write_whole(std::string const& path, std::string const& text);

} // namespace replay
