// The progress line is shown only on a terminal.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

import replay;

namespace {

void show_two_steps(std::FILE* where) {
  replay::progress shown{2, where};
  shown.step("first");
  shown.step("second");
}

TEST(progress, progress_overwrites_one_line_and_clears_it) {
  int program = -1;
  int terminal = -1;
  if (openpty(&program, &terminal, nullptr, nullptr, nullptr) != 0) GTEST_SKIP() << "this system has no terminals";
  std::FILE* const file = fdopen(terminal, "w");
  show_two_steps(file);
  std::fclose(file); // so that reading ends
  // The system returns the text in pieces, some of them later.
  std::string shown;
  std::array<char, 512> piece{};
  for (ssize_t got = 0; (got = read(program, piece.data(), piece.size())) > 0;) {
    shown.append(piece.data(), static_cast<std::size_t>(got));
  }
  EXPECT_EQ(shown, "\r0% first\r0% first"
                   "\r50% second\r50% second"
                   "\r          \r");
  close(program);
}

TEST(progress, progress_to_a_file_is_silent) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  show_two_steps(file);
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
  show_two_steps(nullptr);
}

} // namespace
