// Binary traces, composed byte by byte: rows in order of time, and malformed input is refused.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::extend::trace_action;
using gpumem::extend::trace_record;

constexpr std::size_t part_bytes = 40;
constexpr std::string_view magic = "\x89gpumem\n";

std::string number(std::uint64_t value, int bytes = 8) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string header(std::uint64_t microseconds = 0, std::uint64_t version = 1) {
  return std::string{magic} + number(version, 4) + number(0, 4) + number(microseconds) + number(0) + number(0);
}

std::string row(std::uint64_t nanoseconds, std::uint64_t thread, std::uint64_t action, std::uint64_t pointer,
                std::uint64_t bytes = 8, std::uint64_t stream = 0) {
  return number(nanoseconds) + number(pointer) + number(bytes) + number(stream) + number(thread, 4) + number(action, 4);
}

std::vector<trace_record> read(std::string text) { return gpumem::extend::trace_reader{std::move(text)}.read_all(); }

// Reads until the error. Returns its text, and the rows before it.
std::string error_of(std::string text, std::vector<trace_record>* before = nullptr) {
  try {
    gpumem::extend::trace_reader reader{std::move(text), "t"};
    trace_record record;
    while (reader.next(record)) {
      if (before) before->push_back(record);
    }
  } catch (gpumem::extend::trace_error const& error) { return error.what(); }
  return "no error";
}

TEST(binary_trace, rewound_reader_returns_the_same_rows) {
  std::string const text = header() + row(3, 1, 0, 0x300) + row(1, 2, 0, 0x100) + row(2, 1, 1, 0x100);
  gpumem::extend::trace_reader reader{std::as_bytes(std::span{text})};
  auto const rows = reader.read_all();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows.front().pointer, 0x100u);
  reader.rewind();
  EXPECT_EQ(reader.read_all(), rows);
}

TEST(binary_trace, reads_every_field) {
  auto const records = read(header(5'000'000) + row(1'999, 12, 0, 0x7f852b585800, 131072, 0x286943a0) +
                            row(2'000, 0xffffffff, 1, 0x7f852b585800, 131072) + row(3'000'000'000, 1, 2, 0, ~0ULL, 2));
  EXPECT_EQ(records, (std::vector<trace_record>{{.thread = 12,
                                                 .microseconds = 5'000'001,
                                                 .action = trace_action::allocate,
                                                 .pointer = 0x7f852b585800,
                                                 .bytes = 131072,
                                                 .stream = 0x286943a0},
                                                {.thread = 0xffffffff,
                                                 .microseconds = 5'000'002,
                                                 .action = trace_action::free,
                                                 .pointer = 0x7f852b585800,
                                                 .bytes = 131072},
                                                {.thread = 1,
                                                 .microseconds = 8'000'000,
                                                 .action = trace_action::allocate_failure,
                                                 .bytes = ~0ULL,
                                                 .stream = 2}}));
}

TEST(binary_trace, header_alone_is_an_empty_trace) { EXPECT_TRUE(read(header()).empty()); }

TEST(binary_trace, reads_from_an_input_stream) {
  std::istringstream input{header() + row(0, 1, 0, 1)};
  EXPECT_EQ(gpumem::extend::trace_reader{input}.read_all().size(), 1u);
}

TEST(binary_trace, rows_come_by_time_with_the_numbers_that_they_have_in_the_file) {
  // thread 1's rows come first in the file; those of equal times stay as they are
  gpumem::extend::trace_reader first{header() + row(1, 1, 0, 10) + row(4, 1, 0, 11) + row(4, 1, 1, 11) +
                                     row(2, 2, 0, 12) + row(4, 2, 1, 12)};
  EXPECT_EQ(first.line(), 1u);
  std::vector<std::pair<std::size_t, std::uint64_t>> seen;
  trace_record record;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(first.next(record));
    seen.emplace_back(first.line(), record.pointer);
  }
  auto moved = std::move(first);
  while (moved.next(record)) seen.emplace_back(moved.line(), record.pointer);
  EXPECT_EQ(seen, (std::vector<std::pair<std::size_t, std::uint64_t>>{{2, 10}, {5, 12}, {3, 11}, {4, 11}, {6, 12}}));
  EXPECT_FALSE(moved.next(record));
}

TEST(binary_trace, random_rows_of_several_threads_are_sorted) {
  std::mt19937_64 random{11};
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> rows; // time, pointer
    std::string text = header();
    for (std::uint64_t i = 0; i < random() % 50; ++i) {
      rows.emplace_back(random() % 20, i);
      text += row(rows.back().first, random() % 3, random() % 3, i);
    }
    std::sort(rows.begin(), rows.end());
    std::vector<std::uint64_t> expected, found;
    for (auto const& each : rows) expected.push_back(each.second);
    for (auto const& each : read(text)) found.push_back(each.pointer);
    EXPECT_EQ(found, expected);
  }
}

TEST(binary_trace, header_cut_anywhere_is_refused) {
  auto const whole = header();
  for (std::size_t size = magic.size(); size < part_bytes; ++size)
    EXPECT_EQ(error_of(whole.substr(0, size)), "t:1: cut short: the header is not whole") << size;
  for (std::size_t size = 1; size < magic.size(); ++size)
    EXPECT_EQ(error_of(whole.substr(0, size)), "t:1: cut short: this last line has no line end") << size;
}

TEST(binary_trace, other_headers_are_refused) {
  EXPECT_EQ(error_of(header(0, 3) + row(0, 1, 0, 1)), "t:1: version 3 of the binary format is unknown");
  EXPECT_EQ(error_of(header(0, 0)), "t:1: version 0 of the binary format is unknown");
  EXPECT_EQ(error_of("\x88" + header().substr(1)),
            "t:1: not a trace: the first line must be 'Thread,Time,Action,Pointer,Size,Stream', not '.gpumem'");
}

TEST(binary_trace, rows_before_one_that_is_cut_short_are_read) {
  auto const whole = header() + row(7, 1, 0, 10) + row(3, 2, 0, 11) + row(1, 3, 0, 12);
  for (std::size_t size = 3 * part_bytes + 1; size < 4 * part_bytes; ++size) {
    std::vector<trace_record> before;
    EXPECT_EQ(error_of(whole.substr(0, size), &before), "t:4: cut short: this last row is not whole") << size;
    ASSERT_EQ(before.size(), 2u);
    EXPECT_EQ(before[0].pointer, 11u);
    EXPECT_EQ(before[1].pointer, 10u);
  }
}

TEST(binary_trace, unknown_action_is_refused_with_the_number_of_its_row) {
  std::vector<trace_record> before;
  EXPECT_EQ(error_of(header() + row(1, 1, 0, 10) + row(0, 1, 3, 11) + row(2, 1, 0, 12), &before), "t:3: bad action 3");
  EXPECT_EQ(before.size(), 1u);
  EXPECT_EQ(error_of(header() + row(1, 1, 0xffffffff, 10)), "t:2: bad action 4294967295");
}

TEST(binary_trace, reader_is_at_its_end_after_an_error) {
  gpumem::extend::trace_reader reader{header() + row(1, 1, 9, 10) + row(2, 1, 0, 12), "dir/t"};
  trace_record record;
  try {
    reader.next(record);
    FAIL() << "a malformed row passed";
  } catch (gpumem::extend::trace_error const& error) {
    EXPECT_EQ(error.file(), "dir/t");
    EXPECT_EQ(error.line(), 2u);
    EXPECT_EQ(error.reason(), "bad action 9");
  }
  EXPECT_FALSE(reader.next(record));
  EXPECT_TRUE(reader.read_all().empty());
}

TEST(binary_trace, damaged_traces_give_rows_or_an_error) {
  std::mt19937_64 random{5};
  for (int round = 0; round < 2'000; ++round) {
    std::string text = header();
    for (std::uint64_t i = 0; i < random() % 5; ++i) text += row(i, 1, i % 3, i);
    for (std::uint64_t i = 0; i < random() % 4; ++i) text[random() % text.size()] = static_cast<char>(random());
    text.resize(text.size() - random() % text.size());
    std::vector<trace_record> before;
    auto const error = error_of(text, &before);
    EXPECT_LE(before.size(), text.size() / part_bytes) << error;
  }
}

constexpr std::uint64_t clock_row = 255;

std::string header_2(std::uint64_t microseconds, std::uint64_t ticks) {
  return std::string{magic} + number(2, 4) + number(0, 4) + number(microseconds) + number(ticks) + number(0);
}

TEST(binary_trace, version_2_has_more_actions_and_says_how_allocations_were_served) {
  using enum trace_action;
  std::string text = header_2(0, 0);
  for (std::uint64_t action = 0; action <= 8; ++action) text += row(action, 1, action | (action % 8 << 8), 0x100, 8, 2);
  auto const rows = read(text);
  std::vector<trace_action> const actions{allocate, free, allocate_failure, map, unmap, move, wait, refusal, label};
  ASSERT_EQ(rows.size(), actions.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].action, actions[i]);
    EXPECT_EQ(rows[i].served, static_cast<gpumem::extend::served_by>(i % 8));
    EXPECT_EQ(rows[i].stream, 2u);
    EXPECT_EQ(gpumem::extend::format_row(rows[i]).text().empty(), i > 2) << "RMM's format has the first three alone";
  }
  EXPECT_EQ(error_of(header() + row(0, 1, 3, 1)), "t:2: bad action 3") << "version 1 has the first three alone";
  EXPECT_EQ(error_of(header() + row(0, 1, 1 << 8, 1)), "t:2: bad action 256");
  EXPECT_EQ(error_of(header_2(0, 0) + row(0, 1, 9, 1)), "t:2: bad action 9");
  EXPECT_EQ(error_of(header_2(0, 0) + row(0, 1, 8 << 8, 1)), "t:2: bad action 2048");
}

constexpr std::uint64_t text_row = 254;

std::string label_text(std::uint64_t label, std::string text) {
  auto const bytes = text.size();
  text.resize((bytes + part_bytes - 1) / part_bytes * part_bytes);
  return row(0, 0, text_row | (label << 16), 0, bytes) + text;
}

TEST(binary_trace, labels_have_texts_of_any_length) {
  for (std::size_t const length : {0, 1, 39, 40, 41, 400}) {
    std::string const name(length, 'n');
    gpumem::extend::trace_reader reader{header_2(0, 0) + label_text(3, name) + row(1, 1, 3 << 16, 10) +
                                        row(0, 1, 1 | 3 << 16, 9) + label_text(1, "other") +
                                        row(2, 1, 8 | 1 << 16, 10) + row(3, 1, 8, 10)};
    auto const rows = reader.read_all();
    std::vector<std::uint32_t> labels;
    for (auto const& each : rows) labels.push_back(each.label);
    EXPECT_EQ(labels, (std::vector<std::uint32_t>{3, 3, 1, 0}));
    EXPECT_EQ(reader.label_text(3), name);
    EXPECT_EQ(reader.label_text(1), "other");
    for (std::uint32_t const number : {0, 2, 4, 70'000}) EXPECT_EQ(reader.label_text(number), "");
  }
}

TEST(binary_trace, bad_labels_are_refused) {
  auto const before = header_2(0, 0) + row(0, 1, 0, 10);
  auto const whole = label_text(1, std::string(90, 'n'));
  for (std::size_t size = part_bytes; size < whole.size(); ++size) {
    std::vector<trace_record> rows;
    EXPECT_EQ(error_of(before + whole.substr(0, size), &rows), "t:3: cut short: the text of this label is not whole");
    EXPECT_EQ(rows.size(), 1u);
  }
  EXPECT_EQ(error_of(before + row(0, 0, text_row | 1 << 16, 0, ~0ULL) + whole),
            "t:3: cut short: the text of this label is not whole");
  EXPECT_EQ(error_of(before + row(0, 1, 2 << 16, 11) + label_text(2, "late")),
            "t:3: label 2 has no text before this row");
  EXPECT_EQ(error_of(before + label_text(0, "none")), "t:3: bad action 254");
  EXPECT_EQ(error_of(header() + row(0, 1, text_row, 0)), "t:2: bad action 254") << "version 1 has no labels";
  EXPECT_EQ(error_of(header() + row(0, 1, 1 << 16, 0)), "t:2: bad action 65536");
}

// Ten ticks are a nanosecond at first, and one tick later.
TEST(binary_trace, times_of_version_2_lie_between_those_of_the_clock) {
  auto const rows =
      read(header_2(7, 1'000) + row(1'000, 1, 0, 1) + row(51'000, 1, 0, 2) + row(101'000, 1, clock_row, 10'000) +
           row(102'000, 1, 0, 3) + row(111'000, 1, clock_row, 20'000) + row(121'000, 1, 0, 4) + row(500, 2, 0, 5));
  std::vector<std::uint64_t> times;
  for (auto const& each : rows) times.push_back(each.microseconds);
  EXPECT_EQ(times, (std::vector<std::uint64_t>{7, 7, 12, 18, 37}));
  EXPECT_EQ(rows.front().pointer, 5u) << "a time before the header's counts as the header's";
}

TEST(binary_trace, times_of_version_2_without_the_clock_are_nanoseconds) {
  for (auto const& clock : {std::string{}, row(1'000, 1, clock_row, 5), row(900, 1, clock_row, 5)}) {
    auto const rows = read(header_2(0, 1'000) + row(4'000, 1, 0, 1) + clock);
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].microseconds, 3u);
  }
}

TEST(binary_trace, row_numbers_count_rows_of_the_clock) {
  gpumem::extend::trace_reader reader{header_2(0, 0) + row(0, 1, clock_row, 0) + row(5, 1, 0, 1) + "x", "t"};
  trace_record record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(reader.line(), 3u);
  EXPECT_THROW(reader.next(record), gpumem::extend::trace_error);
  EXPECT_EQ(reader.line(), 4u);
  EXPECT_FALSE(reader.next(record));
}

} // namespace
