// The words, the page and the picture of a report.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <vector>

import gpumem;
import report;
#include "events.hpp"

namespace {

using namespace report_test;

std::vector<report::summary> two() {
  return {report::summarize(random_recording(1, 3'000)), report::summarize(random_recording(2, 500))};
}

TEST(formats, numbers_have_units) {
  EXPECT_EQ(report::format_bytes(0), "0 B");
  EXPECT_EQ(report::format_bytes(1023), "1023 B");
  EXPECT_EQ(report::format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(report::format_bytes(std::uint64_t{123} << 30), "123 GiB");
  EXPECT_EQ(report::format_bytes(~std::uint64_t{0}), "16384 PiB");
  EXPECT_EQ(report::format_time(17), "17 µs");
  EXPECT_EQ(report::format_time(3'210), "3.2 ms");
  EXPECT_EQ(report::format_time(1'250'000), "1.250 s");
  EXPECT_EQ(report::format_count(999), "999");
  EXPECT_EQ(report::format_count(1'234'567), "1,234,567");
}

TEST(formats, same_recording_gives_the_same_report) {
  EXPECT_TRUE(report::format_page(two()) == report::format_page(two())); // not EQ, which would print them
  EXPECT_TRUE(report::format_svg(two()) == report::format_svg(two()));
  EXPECT_EQ(report::format_text(two()), report::format_text(two()));
  EXPECT_EQ(report::format_json(two()), report::format_json(two()));
}

TEST(formats, page_loads_nothing) {
  std::string const page = report::format_page(two());
  EXPECT_NE(page.find("Content-Security-Policy\" content=\"default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.find(" src="), std::string::npos);
  EXPECT_EQ(page.find("<link"), std::string::npos);
  EXPECT_EQ(page.find("@import"), std::string::npos);
  EXPECT_EQ(page.find("url(http"), std::string::npos);
  EXPECT_NE(page.find("Michael Bostock"), std::string::npos) << "the license of D3";
}

TEST(formats, name_of_a_file_cannot_end_a_script) {
  auto all = two();
  all[0].name = "</script><b>&\xff";
  std::string const page = report::format_page(all);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_NE(page.find("<title>&lt;/script&gt;&lt;b&gt;&amp;"), std::string::npos);
  std::string const picture = report::format_svg(all);
  EXPECT_EQ(picture.find("<b>"), std::string::npos);
  EXPECT_NO_THROW(report::format_json(all));
}

// However many rows there are, the page has no more columns, maps and waits.
TEST(formats, page_stays_small) {
  report::recording rows;
  rows.name = rows.file = "long";
  rows.memory = report::memory_source::log;
  rows.streams = {0};
  rows.threads = {1};
  std::mt19937_64 random{1};
  std::uint64_t time = 0;
  constexpr std::uint64_t slots = 1024, slot = std::uint64_t{2} << 20;
  std::vector<std::uint64_t> live(slots);
  rows.events.push_back({.pointer = slot, .bytes = slots * slot, .action = trace_action::map});
  for (int i = 0; i < 400'000; ++i) {
    auto const at = random() % slots;
    event next{.microseconds = time += random() % 1'000'000, .pointer = (at + 1) * slot, .bytes = 1 + random() % slot};
    if (live[at] != 0) next = {next.microseconds, next.pointer, live[at], 0, 0, 0, trace_action::free};
    live[at] = live[at] == 0 ? next.bytes : 0;
    rows.events.push_back(next);
  }
  std::vector<report::summary> const all{report::summarize(rows)};
  EXPECT_GT(all[0].rows_of_column, 1u);
  EXPECT_LT(report::format_page(all).size(), std::size_t{6} << 20);
  EXPECT_LT(report::format_svg(all).size(), std::size_t{100} << 10);
}

TEST(formats, picture_of_a_small_recording) {
  report::recording rows;
  rows.name = rows.file = "small";
  rows.memory = report::memory_source::log;
  rows.streams = {0};
  rows.threads = {1};
  rows.events = {{.pointer = 1 << 20, .bytes = 4 << 20, .action = trace_action::map},
                 {.microseconds = 500, .pointer = 1 << 20, .bytes = 3 << 20},
                 {.microseconds = 1'000, .pointer = 1 << 20, .bytes = 3 << 20, .action = trace_action::free}};
  std::vector<report::summary> const all{report::summarize(rows)};
  std::string const picture = report::format_svg(all);
  for (char const* part : {"live, at most 3.00 MiB", "reserved, at most 4.00 MiB", ">0.6 ms<", "role=\"img\"",
                           "<path d=\"M84,244H461V108.3H839V244H840V244H84Z\" fill=\"#8fbf92\"/>"})
    EXPECT_NE(picture.find(part), std::string::npos) << part << "\n" << picture;
}

} // namespace
