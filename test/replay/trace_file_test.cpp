// Trace files: plain and gzip, whole and damaged.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

import gpumem;
import replay;

namespace {

class trace_file : public testing::Test {
protected:
  trace_file() {
    folder_ = std::filesystem::temp_directory_path() /
              ("gpumem_trace_file_" + std::to_string(testing::UnitTest::GetInstance()->random_seed()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~trace_file() override { std::filesystem::remove_all(folder_); }

  std::string path(std::string const& name) const { return (folder_ / name).string(); }

  std::string file(std::string const& name, std::string const& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  // Returns the bytes of a gzip file with this text.
  std::string gzip(std::string const& text) const {
    std::string const packed = path("packed.gz");
    gzFile const out = gzopen(packed.c_str(), "wb");
    gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
    gzclose(out);
    std::ifstream in(packed, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string error_of(std::string const& file) const {
    try {
      replay::read_trace_file(file);
    } catch (gpumem::extend::trace_error const& error) { return error.what(); }
    return "no error";
  }

  std::filesystem::path folder_;
};

std::string long_text() {
  std::string text = std::string(gpumem::extend::trace_header) + "\n";
  for (int i = 1; i < 20'000; ++i) {
    text +=
        gpumem::extend::format_row({.microseconds = static_cast<std::uint64_t>(i), .pointer = i * 7919ULL, .bytes = 1})
            .text();
  }
  return text;
}

TEST_F(trace_file, plain_and_gzip_files_have_equal_rows) {
  std::string const text = long_text();
  EXPECT_EQ(replay::read_trace_file(file("a.csv", text)), text);
  EXPECT_EQ(replay::read_trace_file(file("a.csv.gz", gzip(text))), text);
}

TEST_F(trace_file, gzip_is_detected_by_its_bytes_and_can_have_several_members) {
  EXPECT_EQ(replay::read_trace_file(file("a.csv", gzip("one\n") + gzip("two\n"))), "one\ntwo\n");
}

TEST_F(trace_file, truncated_gzip_is_reported_with_the_line_where_it_ends) {
  std::string const packed = gzip(long_text());
  std::string const half = file("half.csv.gz", packed.substr(0, packed.size() / 2));
  std::string const message = error_of(half);
  ASSERT_TRUE(message.starts_with(half + ":")) << message;
  int const line = std::stoi(message.substr(half.size() + 1));
  EXPECT_GT(line, 5'000);
  EXPECT_LT(line, 15'000);
  EXPECT_TRUE(message.ends_with(": cut short: the gzip data ends here")) << message;
}

TEST_F(trace_file, truncated_gzip_of_a_binary_trace_is_reported_without_a_line) {
  std::string const packed = gzip("\x89gpumem\n" + std::string(10'000, '\n') + long_text());
  std::string const half = file("half.gz", packed.substr(0, packed.size() / 2));
  EXPECT_EQ(error_of(half), half + ": cut short: the gzip data ends here");
}

TEST_F(trace_file, csv_has_the_rows_of_the_trace) {
  std::string const text = long_text();
  EXPECT_EQ(replay::to_csv(text, "t"), text);
  EXPECT_THROW(replay::to_csv(text + "x\n", "t"), gpumem::extend::trace_error);
}

TEST_F(trace_file, gzip_truncated_anywhere_is_found) {
  std::string const packed = gzip("one\ntwo\n");
  for (std::size_t size = 2; size < packed.size(); ++size) {
    std::string const cut = file("cut.gz", packed.substr(0, size));
    EXPECT_NE(error_of(cut).find("cut short"), std::string::npos) << size;
  }
}

TEST_F(trace_file, damaged_gzip_and_trailing_bytes_are_found) {
  std::string damaged = gzip(long_text());
  damaged[damaged.size() / 2] ^= 0x55;
  EXPECT_NE(error_of(file("damaged.gz", damaged)).find(": damaged: "), std::string::npos);
  std::string const tail = file("tail.gz", gzip("one\n") + "tail");
  EXPECT_EQ(error_of(tail), tail + ":2: something that is not gzip follows the gzip data");
}

TEST_F(trace_file, missing_and_unreadable_files_are_reported) {
  EXPECT_EQ(error_of(path("none.csv")), path("none.csv") + ": cannot be opened: No such file or directory");
  EXPECT_EQ(error_of(folder_.string()), folder_.string() + ": cannot be read: Is a directory");
}

TEST_F(trace_file, trace_name_is_the_file_without_folder_and_suffix) {
  EXPECT_EQ(replay::trace_name("a/b/gpt_train.csv.gz"), "gpt_train");
  EXPECT_EQ(replay::trace_name("x.csv"), "x");
  EXPECT_EQ(replay::trace_name("a/x.gpumemlog"), "x");
  EXPECT_EQ(replay::trace_name("x.gpumemlog.gz"), "x");
  EXPECT_EQ(replay::trace_name("log"), "log");
  EXPECT_EQ(replay::trace_name("v1.2.csv"), "v1.2");
}

} // namespace
