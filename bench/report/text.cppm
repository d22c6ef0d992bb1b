// The figures of a report as text and as JSON.
// SPDX-License-Identifier: Apache-2.0
module;
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>
export module report:text;
import :summary;

namespace report {

/// The name of each way in which a pool serves an allocation.
export inline constexpr std::array<std::string_view, reasons> reason_names{
    "unknown",   "thread cache",       "same stream", "ordered stream",
    "completed", "wait of the stream", "new memory",  "turn in the queue"};

/// Returns "1.50 GiB".
export std::string format_bytes(std::uint64_t bytes);
/// Returns "1.250 s", or "3.2 ms" or "17 µs" below a second.
export std::string format_time(std::uint64_t microseconds);
/// Returns the sizes of a bin, as in "1.00 MiB to 2.00 MiB".
export std::string format_sizes(std::size_t bin);
/// Returns 72,458.
export std::string format_count(std::uint64_t count);

/// Returns where the figures of memory come from, as one sentence.
export std::string describe_source(summary const& of);

/// One figure of several recordings.
export struct figure_row {
  std::string name;
  std::vector<std::string> values;
};
/// Returns the main figures, one value for each recording.
export std::vector<figure_row> main_figures(std::span<summary const> all);

/// Returns the text for people: the figures and the largest holders.
export std::string format_text(std::span<summary const> all);
/// Returns an array with one object for each recording. Names have the units.
export std::string format_json(std::span<summary const> all);

} // namespace report
