// Reading and writing sizes.
// SPDX-License-Identifier: Apache-2.0
module;

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

module replay:bytes.impl;

import :bytes;

namespace replay {

namespace detail {

struct byte_unit {
  std::string_view name;
  std::uint64_t bytes;
};

inline constexpr std::uint64_t kilo = 1000;
inline constexpr std::array<byte_unit, 11> byte_units{{{"", 1},
                                                       {"B", 1},
                                                       {"KiB", 1ULL << 10},
                                                       {"MiB", 1ULL << 20},
                                                       {"GiB", 1ULL << 30},
                                                       {"TiB", 1ULL << 40},
                                                       {"KB", kilo},
                                                       {"kB", kilo},
                                                       {"MB", kilo* kilo},
                                                       {"GB", kilo* kilo* kilo},
                                                       {"TB", kilo* kilo* kilo* kilo}}};

} // namespace detail

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  std::uint64_t whole = 0;
  char const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc{} || text.front() == '-' || !std::isfinite(number)) return std::nullopt;
  auto const [whole_stop, whole_error] = std::from_chars(text.data(), end, whole);
  std::string_view unit{stop, static_cast<std::size_t>(end - stop)};
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (detail::byte_unit const& known : detail::byte_units) {
    if (unit != known.name) continue;
    std::uint64_t exact = 0;
    if (whole_error == std::errc{} && whole_stop == stop) { // a double would lose the last digits of a large one
      if (__builtin_mul_overflow(whole, known.bytes, &exact)) return std::nullopt;
      return exact;
    }
    double const bytes = number * static_cast<double>(known.bytes);
    if (bytes >= 0x1p64) return std::nullopt;
    // 1.1GiB is no whole number of bytes; people mean the nearest
    return known.bytes == 1 && bytes != std::floor(bytes)
               ? std::nullopt
               : std::optional{static_cast<std::uint64_t>(std::llround(bytes))};
  }
  return std::nullopt;
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<char const*, 7> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.996 would be shown as 1024.00
  for (; value >= 1023.995 && unit + 1 < units.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text.data();
}

} // namespace replay
