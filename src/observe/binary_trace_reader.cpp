// trace_reader: reads binary traces.
// SPDX-License-Identifier: Apache-2.0
module;

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

module gpumem:binary_trace_reader.impl;

import :binary_trace;
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

bool is_row_at(std::string_view text, std::size_t position) {
  return text.size() - position >= row_size &&
         part_at<binary_trace_row>(text, position).action <= static_cast<std::uint32_t>(trace_action::allocate_failure);
}

} // namespace
} // namespace detail

void trace_reader::read_binary_header() {
  binary_ = true;
  line_ = 1;
  if (text_.size() < detail::row_size) fail("cut short: the header is not whole");
  const auto header = detail::part_at<detail::binary_trace_header>(text_, 0);
  if (header.version != detail::binary_trace_version) {
    fail("version " + std::to_string(header.version) + " of the binary format is unknown");
  }
  microseconds_ = header.microseconds;
  by_time_.reserve(text_.size() / detail::row_size);
  for (std::size_t at = detail::row_size; detail::is_row_at(text_, at); at += detail::row_size) by_time_.push_back(at);
  const auto key_of = [&](std::size_t position) {
    return std::pair{detail::part_at<detail::binary_trace_row>(text_, position).nanoseconds, position};
  };
  std::ranges::sort(by_time_, {}, key_of);
}

bool trace_reader::next_binary(trace_record& record) {
  if (position_ < by_time_.size()) {
    const std::size_t at = by_time_[position_++];
    line_ = at / detail::row_size + 1;
    const auto row = detail::part_at<detail::binary_trace_row>(text_, at);
    record = {.thread = row.thread,
              .microseconds = microseconds_ + row.nanoseconds / 1000,
              .action = static_cast<trace_action>(row.action),
              .pointer = row.pointer,
              .bytes = row.bytes,
              .stream = row.stream};
    return true;
  }
  const std::size_t end = (by_time_.size() + 1) * detail::row_size;
  if (position_ > by_time_.size() || end == text_.size()) return false;
  line_ = by_time_.size() + 2;
  if (text_.size() - end < detail::row_size) fail("cut short: this last row is not whole");
  fail("bad action " + std::to_string(detail::part_at<detail::binary_trace_row>(text_, end).action));
}

} // namespace gpumem
