// The memory figures that gpumem-replay prints, and the binary traces that it reads, on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include "program_fixture.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace replay_test;

// Blocks of 1 MiB, of which each second one is freed before a large block makes the pool grow.
std::string comb_trace() {
  std::string text = header;
  auto const block = [](int number) { return "0x" + std::to_string(number + 1) + "000"; };
  for (int i = 0; i < 64; ++i) text += row("allocate", block(i), "1048576", "0x1");
  for (int i = 0; i < 64; i += 2) text += row("free", block(i), "1048576", "0x1");
  return text + row("allocate", "0xf00000", "268435456", "0x1");
}

TEST_F(program, fragmentation_is_that_at_the_peak_of_reserved_memory) {
  std::string const whole =
      file("whole.csv", header + row("allocate", "0xa00", "1048576") + row("free", "0xa00", "1048576"));
  std::string const comb = file("comb.csv", comb_trace());
  for (std::vector<std::string> const& how : {std::vector<std::string>{}, std::vector<std::string>{"--work", "20"},
                                              std::vector<std::string>{"--threads", "2"}}) {
    std::vector<std::string> arguments{whole, comb, "--resource=pool_chunks,cuda,async,driver_pool"};
    arguments.insert(arguments.end(), how.begin(), how.end());
    auto const all = statistics(arguments);
    ASSERT_EQ(all.size(), 8U);
    EXPECT_EQ(all[0]["fragmentation"], 0.0) << "one free range: " << all[0];
    EXPECT_GT(all[1]["fragmentation"], .25) << all[1];
    EXPECT_LT(all[1]["fragmentation"], 1.0) << all[1];
    for (std::size_t i = 2; i < all.size(); ++i) EXPECT_FALSE(all[i].contains("fragmentation")) << all[i];
  }
  outcome const shown = run({comb, "--device", "simulated"});
  EXPECT_NE(shown.output.find("  fragmentation  initial size  "), std::string::npos) << shown.output;
}

TEST_F(program, initial_size_is_four_fifths_of_peak_live) {
  auto const all = statistics({file("small.csv", small_trace), "--resource=pool,binning,cuda"});
  for (auto const& object : all) EXPECT_EQ(object["suggested_initial_bytes"], 4 << 20) << object; // 2.4 MiB
  auto const two = statistics({file("small.csv", small_trace), "--resource=pool", "--threads", "2"});
  EXPECT_EQ(two[0]["suggested_initial_bytes"], 6 << 20);
}

// The binary form of small_trace: a header and rows of 40 bytes, in another order than that of their times.
std::string binary_trace() {
  auto const number = [](std::uint64_t value, int bytes = 8) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  auto const row = [&](std::uint64_t time, std::uint64_t action, std::uint64_t pointer, std::uint64_t bytes,
                       std::uint64_t stream) {
    return number(time) + number(pointer) + number(bytes) + number(stream) + number(1, 4) + number(action, 4);
  };
  return "\x89gpumem\n" + number(1, 4) + number(0, 4) + number(0) + number(0) + number(0) +
         row(10, 0, 0xa00, 1 << 20, 1) + row(30, 1, 0xa00, 1 << 20, 2) + row(40, 0, 0xa00, 512, 1) +
         row(20, 0, 0xb00, 2 << 20, 2) + row(50, 1, 0xb00, 2 << 20, 2);
}

TEST_F(program, binary_trace_gives_the_figures_of_its_text) {
  auto const text = statistics({file("same.csv", small_trace)});
  for (std::string const& trace :
       {file("same.gpumemlog", binary_trace()), gzip_file("same.gpumemlog.gz", binary_trace())}) {
    auto binary = statistics({trace});
    for (auto& object : binary) object["file"] = text[0]["file"];
    EXPECT_EQ(binary, text);
  }
}

TEST_F(program, binary_trace_becomes_csv) {
  std::string const trace = file("a.gpumemlog", binary_trace());
  outcome const done = run({trace, "--csv", path("a.csv")});
  EXPECT_EQ(done.code, 0) << done.errors;
  EXPECT_EQ(done.output, "");
  EXPECT_EQ(read(path("a.csv")), small_trace);
  EXPECT_EQ(run({trace, "--csv", path("none") + "/a.csv"}).code, 1);
  EXPECT_EQ(run({trace, trace, "--csv", path("b.csv")}).code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("b.csv")));
}

TEST_F(program, refuses_malformed_binary_traces_with_the_number_of_the_row) {
  std::string const bad = path("bad.gpumemlog");
  std::string const whole = binary_trace();
  std::string damaged = whole;
  damaged[4 * 40 - 4] = 3; // the action of the third row
  std::vector<std::pair<std::string, std::string>> const cases{
      {whole.substr(0, 20), ":1: cut short"},
      {whole.substr(0, 40), ":1: there is nothing to replay"},
      {whole.substr(0, whole.size() - 1), ":6: cut short: this last row is not whole"},
      {damaged, ":4: bad action 3"},
      {whole + whole.substr(5 * 40), ":7: double free of pointer 0xb00, freed in line 6"}};
  for (auto const& [bytes, message] : cases) {
    file("bad.gpumemlog", bytes);
    expect_refusal({bad}, bad + message);
  }
  file("bad.gpumemlog", damaged);
  EXPECT_EQ(run({bad, "--csv", path("a.csv")}).code, 1);
  EXPECT_FALSE(std::filesystem::exists(path("a.csv")));
}

} // namespace
