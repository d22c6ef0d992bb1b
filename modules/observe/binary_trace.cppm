// The binary form of a trace: logging_adaptor writes it, trace_reader reads it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string_view>
export module gpumem:binary_trace;
import :std;

/// A binary trace is a header and then rows. Each of them has 40 bytes, and every number is little-endian. The rows of
/// one thread are in the order of its calls. A stable sort by time puts the rows of all threads in the order of the
/// calls.
namespace gpumem::detail {

inline constexpr std::array<char, 8> binary_trace_magic{'\x89', 'g', 'p', 'u', 'm', 'e', 'm', '\n'};
inline constexpr std::uint32_t binary_trace_version = 1;

struct binary_trace_header {
  std::array<char, 8> magic = binary_trace_magic;
  std::uint32_t version = binary_trace_version;
  std::uint32_t unused_number = 0;
  std::uint64_t microseconds = 0; // from the midnight before the recording to the time 0 of the rows
  std::array<std::uint64_t, 2> unused{};
};

struct binary_trace_row {
  std::uint64_t nanoseconds; // since the time in the header
  std::uint64_t pointer;
  std::uint64_t bytes;
  std::uint64_t stream;
  std::uint32_t thread;
  std::uint32_t action; // a trace_action
};

static_assert(sizeof(binary_trace_header) == sizeof(binary_trace_row));

/// Returns the bytes of a header or a row as a file holds them.
template <class Part> std::string_view bytes_in_trace(Part const& part) noexcept {
  static_assert(sizeof part == sizeof(binary_trace_row));
  return {reinterpret_cast<char const*>(&part), sizeof part};
}

} // namespace gpumem::detail
