// Converts sizes from and to text.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
module gpumem:bytes.impl;
import :bytes;
import :device;

namespace gpumem {
namespace {

struct byte_unit {
  std::string_view name; // in lower case
  std::uint64_t bytes;
};

constexpr std::uint64_t thousand_to(int power) {
  std::uint64_t result = 1;
  for (; power > 0; --power) result *= 1000;
  return result;
}

inline constexpr std::array<byte_unit, 14> byte_units{{{"", 1},
                                                       {"b", 1},
                                                       {"kib", 1ULL << 10},
                                                       {"mib", 1ULL << 20},
                                                       {"gib", 1ULL << 30},
                                                       {"tib", 1ULL << 40},
                                                       {"pib", 1ULL << 50},
                                                       {"eib", 1ULL << 60},
                                                       {"kb", thousand_to(1)},
                                                       {"mb", thousand_to(2)},
                                                       {"gb", thousand_to(3)},
                                                       {"tb", thousand_to(4)},
                                                       {"pb", thousand_to(5)},
                                                       {"eb", thousand_to(6)}}};

[[noreturn]] void refuse(std::string_view text, char const* reason) {
  throw std::invalid_argument{"gpumem: '" + std::string{text} + "' is not a size: " + reason};
}

std::uint64_t unit_of(std::string_view text, std::string_view unit) {
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  auto const small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  for (auto const& known : byte_units) {
    if (std::ranges::equal(unit, known.name, {}, small)) return known.bytes;
  }
  refuse(text, "the unit is not one of B, KiB, MiB, GiB, TiB, PiB, EiB, kB, MB, GB, TB, PB, EB");
}

std::uint64_t whole_bytes(std::string_view text, double number, std::uint64_t unit) {
  auto const bytes = number * static_cast<double>(unit);
  if (bytes >= 0x1p64) refuse(text, "it does not fit into 64 bits");
  // A size such as 1.1GiB is no whole number of bytes, so the result is rounded. A fraction of the unit B is an error.
  if (unit == 1 && bytes != std::floor(bytes)) refuse(text, "it is not a whole number of bytes");
  return static_cast<std::uint64_t>(std::round(bytes));
}

} // namespace

std::size_t parse_bytes(std::string_view text) {
  auto const* const end = text.data() + text.size();
  if (text.starts_with('-')) refuse(text, "it is negative");
  double number = 0;
  auto const [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error == std::errc::result_out_of_range) refuse(text, "it does not fit into 64 bits");
  if (error != std::errc{} || !std::isfinite(number)) refuse(text, "it does not begin with a number");
  auto const unit = unit_of(text, {stop, static_cast<std::size_t>(end - stop)});
  // A whole number is parsed as an integer, because a double would lose the last digits of a large one.
  std::uint64_t whole = 0, exact = 0;
  auto const [whole_stop, whole_error] = std::from_chars(text.data(), end, whole);
  if (whole_error != std::errc{} || whole_stop != stop) return whole_bytes(text, number, unit);
  if (__builtin_mul_overflow(whole, unit, &exact)) refuse(text, "it does not fit into 64 bits");
  return exact;
}

std::string format_bytes(std::size_t bytes) {
  static constexpr std::array<char const*, 7> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // The limit is 1023.995, because larger values would be shown as 1024.00.
  for (; value >= 1023.995 && unit + 1 < units.size(); ++unit) value /= 1024;
  // std::to_chars writes the same in every locale, unlike std::snprintf.
  std::array<char, 32> text{};
  auto const end = std::to_chars(text.begin(), text.end(), value, std::chars_format::fixed, unit == 0 ? 0 : 2).ptr;
  return std::string(text.data(), end) + " " + units[unit];
}

std::size_t percent_of_free_device_memory(int percent, device device) {
  if (percent < 0 || percent > 100) {
    throw std::invalid_argument{"gpumem: " + std::to_string(percent) +
                                " percent of a device's memory; must be 0 to 100"};
  }
  auto const free = device.memory().free;
  auto const share = static_cast<std::size_t>(percent);
  auto const bytes = free / 100 * share + free % 100 * share / 100; // free * share could overflow
  return bytes / 256 * 256;
}

} // namespace gpumem
