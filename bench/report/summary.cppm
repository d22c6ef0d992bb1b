// The summary of a recording: figures, curves over time, holders at the peak, sizes, waits and maps.
// SPDX-License-Identifier: Apache-2.0
module;
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
export module report:summary;
import :events;

namespace report {

/// One moment: the state after a row.
export struct moment {
  std::size_t row = 0; ///< its index among the events
  std::uint64_t microseconds = 0;
  std::uint64_t live = 0; ///< requested bytes of the live blocks
  std::uint64_t blocks = 0;
  std::uint64_t reserved = 0;
  std::uint64_t free = 0;         ///< reserved bytes outside live blocks; blocks in caches are free here
  std::uint64_t largest_free = 0; ///< bytes of the largest range of them

  /// Returns the free bytes outside the largest free range.
  std::uint64_t scattered() const { return free - largest_free; }
  /// Returns 1 - largest free range / free bytes.
  double fragmentation() const {
    return free == 0 ? 0 : 1 - static_cast<double>(largest_free) / static_cast<double>(free);
  }
};

export constexpr std::size_t reasons = static_cast<std::size_t>(served_by::turn) + 1;
export constexpr std::size_t size_bins = 48; ///< bin i: sizes from 2^i to below 2^(i+1); the last has all above

export struct figures {
  std::uint64_t rows = 0;
  std::uint64_t microseconds = 0; ///< from the first row to the last
  std::uint64_t allocations = 0, frees = 0, failures = 0, waits = 0, refusals = 0;
  std::uint64_t maps = 0, unmaps = 0, moves = 0, moved_bytes = 0;
  std::uint64_t unknown_frees = 0; ///< of blocks that the log has not seen
  std::uint64_t waited = 0;        ///< microseconds, all requests together
  std::array<std::uint64_t, reasons> served{};
  moment peak_live;     ///< the first moment with the most live bytes
  moment peak_reserved; ///< the first moment with the most reserved bytes
  /// The first with the most scattered bytes, of the columns' worst moments with at least half of the bytes of peak
  /// live.
  moment worst;
  moment last;
};

/// A group of consecutive rows.
export struct column {
  std::uint64_t microseconds = 0; ///< of its first row
  std::uint64_t live_least = 0, live_most = 0, reserved_most = 0;
  moment worst; ///< the first with the most scattered bytes
  std::array<std::uint32_t, reasons> served{};
  std::uint32_t waiting = 0; ///< the most requests that waited at once
};

export struct holder {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
};

/// The holders at one moment, the largest first.
export struct holder_lists {
  std::vector<holder> streams, threads, labels; ///< no threads in a snapshot; no labels if no block has one
};

export struct size_bin {
  std::uint64_t blocks_at_peak = 0, bytes_at_peak = 0, blocks = 0, bytes = 0;
  std::uint64_t blocks_at_end = 0, bytes_at_end = 0;
};

export struct wait_span {
  std::uint64_t begin = 0, end = 0; ///< microseconds; the end of the recording if the request waits then
  std::uint64_t bytes = 0;
  std::uint16_t stream = 0;
  bool refused = false;
};

/// Addresses that were mapped at any time, as the maps show them: side by side.
export struct address_run {
  std::uint64_t begin = 0, end = 0;
};

/// The memory after a row, in cells of the same size. A cell is 0 without memory, 1 without live blocks, otherwise 2
/// and the color of the stream, or of the label, that holds most of its bytes.
export struct memory_frame {
  moment when;
  std::vector<std::uint8_t> cells;
  std::vector<std::uint8_t> label_cells; ///< empty if no block has a label
  std::vector<std::uint8_t> shares;      ///< of live bytes: 255 is the whole cell
};

export struct summary {
  std::string name, file;
  memory_source memory = memory_source::none;
  figures main;
  std::size_t rows_of_column = 1;
  std::vector<column> columns;
  bool timed = true; ///< false: a snapshot without a trace; it has one moment, which is also its peak
  std::optional<snapshot_facts> snapshot;
  holder_lists at_peak; ///< at peak live
  holder_lists at_end;  ///< after the last row
  std::vector<size_bin> sizes;
  std::vector<wait_span> waits; ///< the longest, by begin
  std::vector<address_run> runs;
  std::uint64_t cell_bytes = 0;
  std::vector<memory_frame> frames;
  std::vector<std::string> colors;       ///< the name of each color: streams, and all others
  std::vector<std::string> label_colors; ///< the labels with the most allocated bytes, and all others
};

export struct bounds {
  std::size_t columns = 32768, frames = 96, cells = 4096, waits = 2000, colors = 12;
};

/// Summarizes a recording. The result is the same each time. Calls `tick` about `summary_ticks` times, if it is set.
export constexpr std::size_t summary_ticks = 40;
export summary summarize(recording const& of, bounds most = {}, std::function<void()> const& tick = {});

/// Returns "stream 0x1" or "weights", as reports name them.
export std::string stream_name(recording const& of, std::uint16_t number);
export std::string label_name(recording const& of, std::uint16_t number);

} // namespace report
