// Traces: records are read as they were written, and malformed input is refused.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::extend::trace_action;
using gpumem::extend::trace_record;

std::string const header = std::string(gpumem::extend::trace_header) + "\n";
std::string const good_row = "1,00:00:00.000486,allocate,0x7f852b585800,131072,0x1\n";

std::vector<trace_record> read(std::string const& rows) {
  return gpumem::extend::trace_reader(header + rows).read_all();
}

std::string error_of(std::string const& text) {
  try {
    gpumem::extend::trace_reader(text, "t.csv").read_all();
  } catch (gpumem::extend::trace_error const& error) { return error.what(); }
  return "no error";
}

TEST(trace_reader, reads_every_field) {
  std::vector<trace_record> const expected{
      {.thread = 12,
       .microseconds = ((23 * 60 + 59) * 60 + 58) * 1'000'000ULL + 7,
       .action = trace_action::allocate,
       .pointer = 0x7f852b585800,
       .bytes = 131072,
       .stream = 0x286943a0},
      {.thread = 12, .microseconds = 1, .action = trace_action::free, .pointer = 0x7f852b585800, .bytes = 131072},
      {.thread = 1, .microseconds = 2, .action = trace_action::allocate_failure, .bytes = 1ULL << 60, .stream = 2}};
  EXPECT_EQ(read("12,23:59:58.000007,allocate,0x7f852b585800,131072,0x286943a0\n"
                 "12,00:00:00.000001,free,0x7f852b585800,131072,0\n"
                 "1,00:00:00.000002,allocate failure,(nil),1152921504606846976,0x2\n"),
            expected);
}

TEST(trace_reader, hexadecimal_streams_need_no_prefix_and_keep_their_letters) {
  EXPECT_EQ(read("1,00:00:00.000000,free,0xAb,1,7f\n").front().stream, 0x7fU);
  EXPECT_EQ(read("1,00:00:00.000000,free,0xAb,1,7f\n").front().pointer, 0xabU);
}

TEST(trace_reader, header_alone_is_an_empty_trace) { EXPECT_TRUE(read("").empty()); }

TEST(trace_reader, lines_may_end_in_carriage_return_and_line_feed) {
  std::string text = header + good_row + good_row;
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.replace(at, 1, "\r\n");
  auto const records = gpumem::extend::trace_reader(text).read_all();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records.back().stream, 1U);
}

TEST(trace_reader, reports_the_line_of_each_row) {
  gpumem::extend::trace_reader reader(header + good_row + good_row, "t.csv");
  trace_record record;
  EXPECT_EQ(reader.line(), 1U);
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(reader.line(), 2U);
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(reader.line(), 3U);
  EXPECT_FALSE(reader.next(record));
  EXPECT_EQ(reader.line(), 3U);
}

TEST(trace_reader, moved_reader_continues) {
  gpumem::extend::trace_reader first(header + good_row + good_row);
  trace_record record;
  ASSERT_TRUE(first.next(record));
  gpumem::extend::trace_reader second(std::move(first));
  EXPECT_TRUE(second.next(record));
  EXPECT_FALSE(second.next(record));
}

TEST(trace_reader, rewound_reader_returns_the_same_rows) {
  gpumem::extend::trace_reader reader(header + good_row + good_row);
  auto const rows = reader.read_all();
  reader.rewind();
  EXPECT_EQ(reader.line(), 1U);
  EXPECT_EQ(reader.read_all(), rows);
  EXPECT_EQ(rows.size(), 2U);
}

TEST(trace_reader, reads_bytes_of_another_owner) {
  std::string const text = header + good_row + good_row;
  gpumem::extend::trace_reader first(std::as_bytes(std::span{text}), "t.csv");
  gpumem::extend::trace_reader second = std::move(first);
  EXPECT_EQ(second.read_all(), read(good_row + good_row));
}

TEST(trace_reader, reads_from_an_input_stream) {
  std::istringstream input(header + good_row);
  EXPECT_EQ(gpumem::extend::trace_reader(input, "t.csv").read_all().size(), 1U);
}

TEST(trace_reader, error_names_file_line_and_reason_and_ends_the_reader) {
  gpumem::extend::trace_reader reader(header + good_row + "nonsense\n" + good_row, "dir/t.csv");
  trace_record record;
  ASSERT_TRUE(reader.next(record));
  try {
    reader.next(record);
    FAIL() << "a malformed row passed";
  } catch (gpumem::extend::trace_error const& error) {
    EXPECT_EQ(error.file(), "dir/t.csv");
    EXPECT_EQ(error.line(), 3U);
    EXPECT_EQ(error.reason(), "a row has 6 fields, this one has 1");
    EXPECT_STREQ(error.what(), "dir/t.csv:3: a row has 6 fields, this one has 1");
  }
  EXPECT_FALSE(reader.next(record));
}

struct malformed {
  char const* name;
  std::string text;
  std::string message;
};

class malformed_trace : public testing::TestWithParam<malformed> {};

TEST_P(malformed_trace, malformed_trace_is_refused_with_its_line) {
  EXPECT_EQ(error_of(GetParam().text), GetParam().message);
}

std::string const not_a_trace =
    "t.csv:1: not a trace: the first line must be 'Thread,Time,Action,Pointer,Size,Stream', not ";

INSTANTIATE_TEST_SUITE_P(
    all, malformed_trace,
    testing::Values(
        malformed{"empty_file", "", "t.csv:1: is empty"},
        malformed{"missing_header", good_row, not_a_trace + "'1,00:00:00.000486,allocate,0x7f852b58580…'"},
        malformed{"other_header", "Thread,Time,Action,Pointer,Size\n",
                  not_a_trace + "'Thread,Time,Action,Pointer,Size'"},
        malformed{"binary", std::string("\x1f\x8b\x08\0\n", 5), not_a_trace + "'....'"},
        malformed{"header_cut", "Thread,Ti", "t.csv:1: cut short: this last line has no line end"},
        malformed{"row_cut", header + good_row + "1,00:00:00.000486,free,0x7f852b585800,131072,0",
                  "t.csv:3: cut short: this last line has no line end"},
        malformed{"blank_line", header + "\n" + good_row, "t.csv:2: a row has 6 fields, this one has 1"},
        malformed{"too_few_fields", header + "1,00:00:00.000000,free,0x1,5\n",
                  "t.csv:2: a row has 6 fields, this one has 5"},
        malformed{"too_many_fields", header + "1,00:00:00.000000,free,0x1,5,0,9\n",
                  "t.csv:2: a row has 6 fields, this one has 7"},
        malformed{"empty_thread", header + ",00:00:00.000000,free,0x1,5,0\n", "t.csv:2: bad thread ''"},
        malformed{"negative_thread", header + "-1,00:00:00.000000,free,0x1,5,0\n", "t.csv:2: bad thread '-1'"},
        malformed{"time_without_fraction", header + "1,00:00:00,free,0x1,5,0\n", "t.csv:2: bad time '00:00:00'"},
        malformed{"time_out_of_range", header + "1,00:60:00.000000,free,0x1,5,0\n",
                  "t.csv:2: bad time '00:60:00.000000'"},
        malformed{"time_overflow", header + "1,9000000000:00:00.000000,free,0x1,5,0\n",
                  "t.csv:2: bad time '9000000000:00:00.000000'"},
        malformed{"unknown_action", header + "1,00:00:00.000000,reallocate,0x1,5,0\n",
                  "t.csv:2: bad action 'reallocate'"},
        malformed{"pointer_without_prefix", header + "1,00:00:00.000000,free,12,5,0\n", "t.csv:2: bad pointer '12'"},
        malformed{"pointer_prefix_alone", header + "1,00:00:00.000000,free,0x,5,0\n", "t.csv:2: bad pointer '0x'"},
        malformed{"pointer_too_wide", header + "1,00:00:00.000000,free,0x10000000000000000,5,0\n",
                  "t.csv:2: bad pointer '0x10000000000000000'"},
        malformed{"size_negative", header + "1,00:00:00.000000,free,0x1,-5,0\n", "t.csv:2: bad size '-5'"},
        malformed{"size_too_large", header + "1,00:00:00.000000,free,0x1,18446744073709551616,0\n",
                  "t.csv:2: bad size '18446744073709551616'"},
        malformed{"size_with_unit", header + "1,00:00:00.000000,free,0x1,5KiB,0\n", "t.csv:2: bad size '5KiB'"},
        malformed{"size_hexadecimal", header + "1,00:00:00.000000,free,0x1,0x10,0\n", "t.csv:2: bad size '0x10'"},
        malformed{"blank_before_number", header + "1,00:00:00.000000,free,0x1, 5,0\n", "t.csv:2: bad size ' 5'"},
        malformed{"stream_nil", header + "1,00:00:00.000000,free,0x1,5,(nil)\n", "t.csv:2: bad stream '(nil)'"},
        malformed{"stream_empty", header + "1,00:00:00.000000,free,0x1,5,\n", "t.csv:2: bad stream ''"},
        malformed{"trailing_garbage", header + good_row + "1,00:00:00.000000,free,0x1,5,0 tail\n",
                  "t.csv:3: bad stream '0 tail'"}),
    [](auto const& parameter) { return parameter.param.name; });

std::string written(std::vector<trace_record> const& records) {
  std::ostringstream output;
  gpumem::extend::trace_writer writer(output);
  for (trace_record const& record : records) writer.write(record);
  writer.flush();
  return output.str();
}

TEST(trace_writer, writes_rows_in_the_format_of_rmm) {
  EXPECT_EQ(
      written({{.thread = 1, .microseconds = 486, .pointer = 0x7f852b585800, .bytes = 131072, .stream = 1},
               {.thread = 2, .microseconds = 3'661'000'001, .action = trace_action::free, .pointer = 0xa, .bytes = 7},
               {.action = trace_action::allocate_failure, .bytes = 9}}),
      header + good_row +
          "2,01:01:01.000001,free,0xa,7,0\n"
          "0,00:00:00.000000,allocate failure,(nil),9,0\n");
}

TEST(trace_writer, longest_row_fits) {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  trace_record const widest{most, most, trace_action::allocate_failure, most, most, most};
  gpumem::extend::trace_row const row = gpumem::extend::format_row(widest);
  EXPECT_EQ(row.text(),
            "18446744073709551615,5124095576:01:49.551615,allocate failure,0xffffffffffffffff,18446744073709551615,"
            "0xffffffffffffffff\n");
}

TEST(trace_round_trip, random_records_are_read_as_they_were_written) {
  std::mt19937_64 random(7);
  std::vector<trace_record> records(5'000);
  for (trace_record& record : records) {
    // numbers of every width, not only the widest
    auto const number = [&] { return random() >> (random() % 64); };
    record = {number(),
              number() % (100'000ULL * 3'600'000'000),
              static_cast<trace_action>(random() % 3),
              number(),
              number(),
              number() * (random() % 2)};
  }
  std::string const text = written(records);
  auto const again = gpumem::extend::trace_reader(text).read_all();
  EXPECT_EQ(again, records);
  EXPECT_EQ(written(again), text);
}

} // namespace
