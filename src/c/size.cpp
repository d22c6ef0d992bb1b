// Parses sizes exactly: a double would lose the last digits of a large size.
// SPDX-License-Identifier: Apache-2.0
#include "size.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace gpumem::c {
namespace {

struct unit {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr std::uint64_t thousand = 1000;
constexpr std::array<unit, 11> units{{{"", 1},
                                      {"B", 1},
                                      {"KiB", std::uint64_t{1} << 10},
                                      {"MiB", std::uint64_t{1} << 20},
                                      {"GiB", std::uint64_t{1} << 30},
                                      {"TiB", std::uint64_t{1} << 40},
                                      {"kB", thousand},
                                      {"KB", thousand},
                                      {"MB", thousand* thousand},
                                      {"GB", thousand* thousand* thousand},
                                      {"TB", thousand* thousand* thousand* thousand}}};

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// Removes the digits at the front of the text and appends them to the number `value`. Returns false if the number
/// overflows.
bool take_whole(std::string_view& text, std::uint64_t& value) noexcept {
  for (; !text.empty() && is_digit(text.front()); text.remove_prefix(1)) {
    auto const digit = static_cast<std::uint64_t>(text.front() - '0');
    if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, digit, &value)) return false;
  }
  return true;
}

/// Removes the digits at the front of the text and returns their value as decimals after a point.
long double take_fraction(std::string_view& text) noexcept {
  long double value = 0, place = 0.1L;
  for (; !text.empty() && is_digit(text.front()); text.remove_prefix(1), place /= 10) {
    value += place * static_cast<long double>(text.front() - '0');
  }
  return value;
}

} // namespace

std::optional<std::size_t> parse_size(std::string_view text) noexcept {
  if (text.empty() || !is_digit(text.front())) return std::nullopt;
  std::uint64_t whole = 0;
  if (!take_whole(text, whole)) return std::nullopt;
  long double fraction = 0;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (text.empty() || !is_digit(text.front())) return std::nullopt;
    fraction = take_fraction(text);
  }
  while (text.starts_with(' ')) text.remove_prefix(1);
  for (unit const& known : units) {
    if (text != known.name) continue;
    if (fraction != 0 && known.bytes == 1) return std::nullopt; // a fraction of a byte
    auto const part = static_cast<std::uint64_t>(std::llround(fraction * static_cast<long double>(known.bytes)));
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(whole, known.bytes, &bytes) || __builtin_add_overflow(bytes, part, &bytes)) {
      return std::nullopt;
    }
    return bytes;
  }
  return std::nullopt;
}

} // namespace gpumem::c
