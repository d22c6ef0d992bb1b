// Reads and writes traces.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <istream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
module gpumem:trace.impl;
import :memory_watcher;
import :trace;

namespace gpumem {

namespace detail {
namespace {

static_assert(std::endian::native == std::endian::little); // so a row of the file can be copied into a row in memory
inline constexpr std::size_t row_size = sizeof(binary_trace_row);

// Returns the header or the row at this position, which need not be aligned.
template <class Part> Part part_at(std::string_view text, std::size_t position) {
  Part part;
  std::memcpy(&part, text.data() + position, sizeof part);
  return part;
}

constexpr std::size_t action_at = offsetof(binary_trace_row, action);

// Returns whether the version has such rows. In version 1 the action has four bytes.
bool is_row_at(std::string_view text, std::size_t position, std::uint32_t version) {
  if (text.size() - position < row_size) return false;
  if (version == 1)
    return part_at<std::uint32_t>(text, position + action_at) <=
           static_cast<std::uint32_t>(trace_action::allocate_failure);
  auto const row = part_at<binary_trace_row>(text, position);
  bool const known =
      row.action <= static_cast<std::uint8_t>(trace_action::label) || row.action >= binary_trace_row::text_row;
  bool const named = row.action != binary_trace_row::text_row || row.label > 0;
  return known && named && row.served <= static_cast<std::uint8_t>(served_by::turn);
}

} // namespace
} // namespace detail

void trace_reader::read_binary_header() {
  binary_ = true;
  line_ = 1;
  if (text_.size() < detail::row_size) fail("cut short: the header is not whole");
  auto const header = detail::part_at<detail::binary_trace_header>(text_, 0);
  if (header.version == 0 || header.version > detail::binary_trace_version) {
    fail("version " + std::to_string(header.version) + " of the binary format is unknown");
  }
  microseconds_ = header.microseconds;
  version_ = header.version;
  if (version_ > 1) clock_.push_back({header.ticks, 0});
  if (text_.size() / detail::row_size > std::numeric_limits<std::uint32_t>::max()) fail("more than 2^32 rows");
  by_time_.reserve(text_.size() / detail::row_size);
  labels_.resize(1);
  for (read_end_ = detail::row_size; detail::is_row_at(text_, read_end_, version_); read_end_ += detail::row_size) {
    auto const row = detail::part_at<detail::binary_trace_row>(text_, read_end_);
    if (version_ > 1 && row.action == detail::binary_trace_row::text_row) {
      if (!read_label_text()) break;
    } else if (row.label >= labels_.size()) {
      break;
    } else if (version_ > 1 && row.action == detail::binary_trace_row::clock_row) {
      clock_.push_back({row.ticks, row.pointer});
    } else {
      by_time_.push_back(static_cast<std::uint32_t>(read_end_ / detail::row_size));
    }
  }
  auto const key_of = [&](std::uint32_t number) {
    return std::pair{detail::part_at<detail::binary_trace_row>(text_, number * detail::row_size).ticks, number};
  };
  if (!std::ranges::is_sorted(by_time_, {}, key_of)) std::ranges::sort(by_time_, {}, key_of);
  std::ranges::sort(clock_, {}, &moment::ticks);
}

// Reads the text after a text row, and goes on to its last part. Returns false if it is cut short.
bool trace_reader::read_label_text() {
  auto const row = detail::part_at<detail::binary_trace_row>(text_, read_end_);
  auto const rest = text_.size() - read_end_ - detail::row_size;
  auto const parts = row.bytes / detail::row_size + (row.bytes % detail::row_size != 0);
  if (parts > rest / detail::row_size) return false;
  if (row.label >= labels_.size()) labels_.resize(row.label + std::size_t{1});
  labels_[row.label] = text_.substr(read_end_ + detail::row_size, row.bytes);
  read_end_ += parts * detail::row_size;
  return true;
}

// Without two moments, a tick is a nanosecond. Called for rows in the order of their ticks.
std::uint64_t trace_reader::nanoseconds_at(std::uint64_t ticks) noexcept {
  if (clock_.empty()) return ticks;
  while (passed_ + 2 < clock_.size() && clock_[passed_ + 1].ticks <= ticks) ++passed_;
  auto const& first = clock_[passed_];
  auto const since = static_cast<double>(ticks - std::min(ticks, first.ticks));
  auto const& next = clock_[std::min(passed_ + 1, clock_.size() - 1)];
  bool const measured = next.ticks > first.ticks && next.nanoseconds >= first.nanoseconds;
  auto const length = measured ? static_cast<double>(next.nanoseconds - first.nanoseconds) /
                                     static_cast<double>(next.ticks - first.ticks)
                               : 1.0;
  return first.nanoseconds + static_cast<std::uint64_t>(std::min(since * length, 1e18));
}

bool trace_reader::next_binary(trace_record& record) {
  if (position_ < by_time_.size()) {
    std::size_t const number = by_time_[position_++];
    line_ = number + 1;
    auto const row = detail::part_at<detail::binary_trace_row>(text_, number * detail::row_size);
    record = {.thread = row.thread,
              .microseconds = microseconds_ + nanoseconds_at(row.ticks) / 1000,
              .action = static_cast<trace_action>(row.action),
              .pointer = row.pointer,
              .bytes = row.bytes,
              .stream = row.stream,
              .served = static_cast<served_by>(row.served),
              .label = row.label};
    return true;
  }
  if (position_ > by_time_.size() || read_end_ == text_.size()) return false;
  line_ = read_end_ / detail::row_size + 1;
  if (text_.size() - read_end_ < detail::row_size) fail("cut short: this last row is not whole");
  auto const row = detail::part_at<detail::binary_trace_row>(text_, read_end_);
  if (detail::is_row_at(text_, read_end_, version_)) {
    bool const text = row.action == detail::binary_trace_row::text_row;
    fail(text ? "cut short: the text of this label is not whole"
              : "label " + std::to_string(row.label) + " has no text before this row");
  }
  fail("bad action " + std::to_string(detail::part_at<std::uint32_t>(text_, read_end_ + detail::action_at)));
}

namespace detail {

inline constexpr std::size_t trace_columns = 6;
inline constexpr std::array<std::string_view, trace_columns> trace_column_names{"thread",  "time", "action",
                                                                                "pointer", "size", "stream"};
inline constexpr std::string_view trace_null_pointer = "(nil)";
inline constexpr std::array<std::string_view, 3> trace_action_names{"allocate", "free", "allocate failure"};

// Parses a number. Accepts only a text of digits whose value fits; from_chars alone would stop at the first other
// character.
bool parse_trace_number(std::string_view text, std::uint64_t& value, int base) {
  char const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, value, base);
  return error == std::errc{} && stop == end;
}

bool parse_trace_hexadecimal(std::string_view text, std::uint64_t& value) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  return parse_trace_number(text, value, 16);
}

bool parse_trace_pointer(std::string_view text, std::uint64_t& value) {
  if (text == trace_null_pointer) {
    value = 0;
    return true;
  }
  return text.starts_with("0x") && parse_trace_hexadecimal(text, value);
}

// Parses HH:MM:SS.ffffff. In recordings longer than a day the hours go on beyond 23.
bool parse_trace_time(std::string_view text, std::uint64_t& microseconds) {
  constexpr std::size_t tail = sizeof(":MM:SS.ffffff") - 1;
  constexpr std::uint64_t max_hours = 5'124'095'575; // the last whole hour whose microseconds fit
  if (text.size() < tail + 2) return false;
  std::size_t const hours_end = text.size() - tail;
  if (text[hours_end] != ':' || text[hours_end + 3] != ':' || text[hours_end + 6] != '.') return false;
  std::uint64_t hours = 0;
  std::uint64_t minutes = 0;
  std::uint64_t seconds = 0;
  std::uint64_t fraction = 0;
  if (!parse_trace_number(text.substr(0, hours_end), hours, 10) ||
      !parse_trace_number(text.substr(hours_end + 1, 2), minutes, 10) ||
      !parse_trace_number(text.substr(hours_end + 4, 2), seconds, 10) ||
      !parse_trace_number(text.substr(hours_end + 7), fraction, 10)) {
    return false;
  }
  // 60 is a leap second
  if (hours > max_hours || minutes > 59 || seconds > 60) return false;
  microseconds = ((hours * 60 + minutes) * 60 + seconds) * 1'000'000 + fraction;
  return true;
}

bool parse_trace_action(std::string_view text, trace_action& action) {
  auto const found = std::find(trace_action_names.begin(), trace_action_names.end(), text);
  if (found == trace_action_names.end()) return false;
  action = static_cast<trace_action>(found - trace_action_names.begin());
  return true;
}

std::size_t split_trace_row(std::string_view row, std::array<std::string_view, trace_columns>& fields) {
  std::size_t count = 0;
  for (;;) {
    std::size_t const comma = row.find(',');
    if (count < trace_columns) fields[count] = row.substr(0, comma);
    ++count;
    if (comma == std::string_view::npos) return count;
    row.remove_prefix(comma + 1);
  }
}

// Returns the index of the first column with a wrong value; nullopt if all values are right.
std::optional<std::size_t> parse_trace_fields(std::array<std::string_view, trace_columns> const& fields,
                                              trace_record& record) {
  if (!parse_trace_number(fields[0], record.thread, 10)) return 0;
  if (!parse_trace_time(fields[1], record.microseconds)) return 1;
  if (!parse_trace_action(fields[2], record.action)) return 2;
  if (!parse_trace_pointer(fields[3], record.pointer)) return 3;
  if (!parse_trace_number(fields[4], record.bytes, 10)) return 4;
  if (!parse_trace_hexadecimal(fields[5], record.stream)) return 5;
  return std::nullopt;
}

// Returns a field in the form in which an error message shows it: short and printable.
std::string quoted_trace_text(std::string_view text) {
  constexpr std::size_t max_shown = 40;
  std::string shown = "'";
  for (char const c : text.substr(0, max_shown)) shown += c >= ' ' && c <= '~' ? c : '.';
  return shown + (text.size() > max_shown ? "…'" : "'");
}

std::string trace_place(std::string const& file, std::size_t line) {
  return line == 0 ? file : file + ":" + std::to_string(line);
}

// Appends to a fixed buffer that is known to be long enough.
struct trace_cursor {
  char* at;
  char* end;

  void text(std::string_view characters) { at = std::copy(characters.begin(), characters.end(), at); }
  void number(std::uint64_t value, int base = 10) { at = std::to_chars(at, end, value, base).ptr; }
  void padded(std::uint64_t value, int digits) {
    for (int i = digits; i-- > 0; value /= 10) at[i] = static_cast<char>('0' + value % 10);
    at += digits;
  }
  void hexadecimal(std::uint64_t value) {
    text("0x");
    number(value, 16);
  }
  void time(std::uint64_t microseconds) {
    std::uint64_t const seconds = microseconds / 1'000'000;
    std::uint64_t const hours = seconds / 3600;
    hours < 100 ? padded(hours, 2) : number(hours);
    text(":");
    padded(seconds / 60 % 60, 2);
    text(":");
    padded(seconds % 60, 2);
    text(".");
    padded(microseconds % 1'000'000, 6);
  }
};

} // namespace detail

trace_error::trace_error(std::string file, std::size_t line, std::string reason)
    : std::runtime_error(detail::trace_place(file, line) + ": " + reason), file_(std::move(file)), line_(line),
      reason_(std::move(reason)) {}

trace_row extend::format_row(trace_record const& record) noexcept {
  trace_row row;
  if (static_cast<std::size_t>(record.action) >= detail::trace_action_names.size()) return row;
  char* const begin = row.text_.data();
  detail::trace_cursor cursor{begin, begin + row.text_.size()};
  cursor.number(record.thread);
  cursor.text(",");
  cursor.time(record.microseconds);
  cursor.text(",");
  cursor.text(detail::trace_action_names[static_cast<std::size_t>(record.action)]);
  cursor.text(",");
  record.pointer == 0 ? cursor.text(detail::trace_null_pointer) : cursor.hexadecimal(record.pointer);
  cursor.text(",");
  cursor.number(record.bytes);
  cursor.text(",");
  record.stream == 0 ? cursor.text("0") : cursor.hexadecimal(record.stream);
  cursor.text("\n");
  row.size_ = static_cast<std::size_t>(cursor.at - begin);
  return row;
}

trace_reader::trace_reader(std::string text, std::string name)
    : owned_{std::make_shared<std::string const>(std::move(text))}, text_{*owned_}, name_(std::move(name)) {
  read_header();
}

trace_reader::trace_reader(std::span<std::byte const> bytes, std::string name)
    : text_{reinterpret_cast<char const*>(bytes.data()), bytes.size()}, name_(std::move(name)) {
  read_header();
}

trace_reader::trace_reader(std::istream& input, std::string name)
    : owned_{std::make_shared<std::string const>(std::istreambuf_iterator<char>(input),
                                                 std::istreambuf_iterator<char>())},
      text_{*owned_}, name_(std::move(name)) {
  if (input.bad()) throw trace_error(name_, 0, "cannot be read");
  read_header();
}

void trace_reader::fail(std::string reason) {
  position_ = text_.size();
  throw trace_error(name_, line_, std::move(reason));
}

std::string_view trace_reader::next_line() {
  ++line_;
  std::size_t const end = text_.find('\n', position_);
  if (end == std::string::npos) fail("cut short: this last line has no line end");
  std::string_view line = text_.substr(position_, end - position_);
  position_ = end + 1;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

void trace_reader::read_header() {
  if (text_.empty()) throw trace_error(name_, 1, "is empty");
  if (text_.starts_with(std::string_view{detail::binary_trace_magic.data(), detail::binary_trace_magic.size()})) {
    return read_binary_header();
  }
  std::string_view const first = next_line();
  if (first != trace_header) {
    fail("not a trace: the first line must be '" + std::string(trace_header) + "', not " +
         detail::quoted_trace_text(first));
  }
  begin_ = position_;
}

bool trace_reader::next(trace_record& record) {
  if (binary_) return next_binary(record);
  if (position_ == text_.size()) return false;
  std::string_view const row = next_line();
  std::array<std::string_view, detail::trace_columns> fields;
  std::size_t const count = detail::split_trace_row(row, fields);
  if (count != fields.size()) {
    fail("a row has " + std::to_string(fields.size()) + " fields, this one has " + std::to_string(count));
  }
  if (auto const wrong = detail::parse_trace_fields(fields, record)) {
    fail("bad " + std::string(detail::trace_column_names[*wrong]) + " " + detail::quoted_trace_text(fields[*wrong]));
  }
  return true;
}

std::vector<trace_record> trace_reader::read_all() {
  std::vector<trace_record> records;
  // a typical line has 50 characters
  records.reserve(binary_ ? by_time_.size() : (text_.size() - position_) / 48);
  trace_record record;
  while (next(record)) records.push_back(record);
  return records;
}

trace_writer::trace_writer(std::ostream& output) : output_(&output) { *output_ << trace_header << '\n'; }

void trace_writer::write(trace_record const& record) {
  trace_row const row = format_row(record);
  output_->write(row.text().data(), static_cast<std::streamsize>(row.text().size()));
}

void trace_writer::flush() { output_->flush(); }

} // namespace gpumem
