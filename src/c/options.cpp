// Parses options and sizes exactly: a double would lose the last digits of a large size.
// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

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
  std::uint64_t whole_number = 0;
  if (!take_whole(text, whole_number)) return std::nullopt;
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
    if (__builtin_mul_overflow(whole_number, known.bytes, &bytes) || __builtin_add_overflow(bytes, part, &bytes)) {
      return std::nullopt;
    }
    return bytes;
  }
  return std::nullopt;
}

namespace {

using namespace std::string_view_literals;

[[noreturn]] void refuse(std::string_view option, std::string const& reason) {
  throw std::invalid_argument{"gpumem: the option '" + std::string{option} + "' " + reason};
}

std::size_t size_of(std::string_view option, std::string_view value) {
  if (auto const bytes = parse_size(value)) return *bytes;
  refuse(option, "is not a size: '" + std::string{value} + "'; write 4096, 512MiB, 1.5GiB or 2GB");
}

reuse_policy reuse_policy_of(std::string_view option, std::string_view value) {
  if (value == "ordered"sv) return reuse_policy::ordered;
  if (value == "completed"sv) return reuse_policy::completed;
  if (value == "wait"sv) return reuse_policy::wait;
  refuse(option, "must be ordered, completed or wait, not '" + std::string{value} + "'");
}

bool switch_of(std::string_view option, std::string_view value) {
  if (value == "on"sv || value == "off"sv) return value == "on"sv;
  refuse(option, "must be on or off, not '" + std::string{value} + "'");
}

// The range is checked, since from_chars also accepts "nan" and "inf".
double share_of(std::string_view option, std::string_view value) {
  double share = 0;
  auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), share);
  bool const whole = error == std::errc{} && end == value.data() + value.size();
  if (whole && share >= 0 && share <= 1) return share;
  refuse(option, "must be a number from 0 to 1, not '" + std::string{value} + "'; write 0.1");
}

struct known_option {
  std::string_view name;
  void (*set)(pool_options& options, std::string_view name, std::string_view value);
};

unsigned count_of(std::string_view option, std::string_view value) {
  unsigned count = 0;
  auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error == std::errc{} && end == value.data() + value.size()) return count;
  refuse(option, "must be a whole number, not '" + std::string{value} + "'");
}

std::chrono::nanoseconds time_of(std::string_view option, std::string_view value) {
  constexpr double longest = 31'536'000; // seconds in a year: no clock overflows if this is added
  double seconds = 0;
  auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  bool const whole = error == std::errc{} && std::string_view{end, value.data() + value.size()} == "s"sv;
  if (whole && seconds >= 0 && seconds <= longest)
    return std::chrono::nanoseconds{static_cast<std::int64_t>(seconds * 1e9)};
  refuse(option, "must be a time of at most a year, not '" + std::string{value} + "'; write 1.5s");
}

constexpr std::array known_options{
    known_option{"chunk_size"sv, [](pool_options& o, auto name, auto v) { o.chunk_size = size_of(name, v); }},
    known_option{"cross_stream"sv,
                 [](pool_options& o, auto name, auto v) { o.cross_stream = reuse_policy_of(name, v); }},
    known_option{"effort"sv, [](pool_options& o, auto name, auto v) { o.effort = share_of(name, v); }},
    known_option{"failure_report"sv, [](pool_options& o, auto, auto v) { o.failure_report = v; }},
    known_option{"guard"sv, [](pool_options& o, auto name, auto v) { o.hardened.guard = size_of(name, v); }},
    known_option{"hardened"sv, [](pool_options& o, auto name, auto v) { o.hardened.enabled = switch_of(name, v); }},
    known_option{"history"sv, [](pool_options& o, auto name, auto v) { o.hardened.history = size_of(name, v); }},
    known_option{"initial_size"sv, [](pool_options& o, auto name, auto v) { o.initial_size = size_of(name, v); }},
    known_option{"largest_block"sv, [](pool_options& o, auto name, auto v) { o.largest_block = size_of(name, v); }},
    known_option{"limit"sv, [](pool_options& o, auto name, auto v) { o.limit = size_of(name, v); }},
    known_option{"max_overtakes"sv, [](pool_options& o, auto name, auto v) { o.max_overtakes = count_of(name, v); }},
    known_option{"name"sv, [](pool_options& o, auto, auto v) { o.name = v; }},
    known_option{"pages"sv, [](pool_options& o, auto name, auto v) { o.pages = switch_of(name, v); }},
    known_option{"pass_through"sv, [](pool_options& o, auto name, auto v) { o.pass_through = switch_of(name, v); }},
    known_option{"poison"sv, [](pool_options& o, auto name, auto v) { o.hardened.poison = size_of(name, v); }},
    known_option{"quarantine"sv, [](pool_options& o, auto name, auto v) { o.hardened.quarantine = size_of(name, v); }},
    known_option{"release_threshold"sv,
                 [](pool_options& o, auto name, auto v) { o.release_threshold = size_of(name, v); }},
    known_option{"shard_per_thread"sv,
                 [](pool_options& o, auto name, auto v) { o.shard_per_thread = switch_of(name, v); }},
    known_option{"smallest_block"sv, [](pool_options& o, auto name, auto v) { o.smallest_block = size_of(name, v); }},
    known_option{"stall_timeout"sv, [](pool_options& o, auto name, auto v) { o.stall_timeout = time_of(name, v); }},
};
using seen_options = std::array<bool, known_options.size()>;

void read_option(std::string_view text, pool_options& options, seen_options& set_options) {
  auto const equals = text.find('=');
  auto const name = trimmed(text.substr(0, equals));
  if (equals == std::string_view::npos) refuse(name, "has no value: write name=value");
  auto const value = trimmed(text.substr(equals + 1));
  auto const entry = std::ranges::find(known_options, name, &known_option::name);
  if (entry == known_options.end()) {
    std::string names;
    for (auto const& known : known_options) names += (names.empty() ? "" : ", ") + std::string{known.name};
    refuse(name, "is unknown; the options are " + names);
  }
  auto& before = set_options[static_cast<std::size_t>(entry - known_options.begin())];
  if (before) refuse(name, "is given twice");
  if (value.empty()) refuse(name, "has an empty value");
  before = true;
  entry->set(options, name, value);
}

} // namespace

std::string_view trimmed(std::string_view text) noexcept {
  constexpr auto blanks = " \t\r\n"sv;
  auto const first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool is_option(std::string_view name) noexcept {
  return std::ranges::find(known_options, name, &known_option::name) != known_options.end();
}

pool_options parse_options(std::string_view text, pool_options options) {
  if (trimmed(text).empty()) return options;
  seen_options seen{};
  while (true) {
    auto const comma = text.find(',');
    auto const one = trimmed(text.substr(0, comma));
    if (one.empty()) throw std::invalid_argument{"gpumem: an option is missing between commas"};
    read_option(one, options, seen);
    if (comma == std::string_view::npos) return options;
    text.remove_prefix(comma + 1);
  }
}

} // namespace gpumem::c
