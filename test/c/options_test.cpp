// The text options of a C pool: how they are parsed, which are refused, and where the memory comes from.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem.h>
#include <gpumem/simulator.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "../../src/c/options.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::c::parse_options;
using testing::HasSubstr;

constexpr std::size_t mib = std::size_t{1} << 20;

TEST(c_options_read, every_option_is_read) {
  auto const read = parse_options("initial_size=1MiB, limit=2GiB, release_threshold=3MiB, effort=0.1, pages=off,"
                                  "cross_stream=completed, name=all of them, hardened=on, guard=512, quarantine=4KiB,"
                                  "poison=5KiB, history=6, chunk_size=7MiB, smallest_block=8KiB, largest_block=9MiB,"
                                  "failure_report=/tmp/report, max_overtakes=3, shard_per_thread=on,"
                                  "stall_timeout=1.5s, pass_through=on");
  EXPECT_EQ(read.initial_size, mib);
  EXPECT_EQ(read.limit, 2048 * mib);
  EXPECT_EQ(read.release_threshold, 3 * mib);
  EXPECT_EQ(read.effort, 0.1);
  EXPECT_FALSE(read.pages);
  EXPECT_EQ(read.cross_stream, gpumem::reuse_policy::completed);
  EXPECT_EQ(read.name, "all of them");
  EXPECT_TRUE(read.hardened.enabled);
  EXPECT_EQ(read.hardened.guard, 512u);
  EXPECT_EQ(read.hardened.quarantine, 4096u);
  EXPECT_EQ(read.hardened.poison, 5120u);
  EXPECT_EQ(read.hardened.history, 6u);
  EXPECT_EQ(read.chunk_size, 7 * mib);
  EXPECT_EQ(read.smallest_block, 8192u);
  EXPECT_EQ(read.largest_block, 9 * mib);
  EXPECT_EQ(read.failure_report, "/tmp/report");
  EXPECT_EQ(read.max_overtakes, 3u);
  EXPECT_TRUE(read.shard_per_thread);
  EXPECT_TRUE(read.pass_through);
  EXPECT_EQ(read.stall_timeout, std::chrono::milliseconds{1500});
}

TEST(c_options_read, options_that_are_not_named_keep_their_values) {
  gpumem::pool_options given;
  given.effort = 0.5;
  given.pages = false;
  for (auto const* text : {"", "  ", "limit=1GiB"}) {
    EXPECT_EQ(parse_options(text, given).effort, 0.5);
    EXPECT_FALSE(parse_options(text, given).pages);
  }
  EXPECT_TRUE(parse_options("pages=on", given).pages);
  EXPECT_EQ(parse_options("").effort, gpumem::pool_options{}.effort);
  EXPECT_TRUE(parse_options("").pages);
}

TEST(c_options_read, effort_is_read_in_decimal_and_exponent_notation) {
  struct {
    char const* text;
    double value;
  } const written[] = {{"effort=0", 0},      {"effort=1", 1},         {"effort=1.0", 1},    {" effort = 0.25 ", 0.25},
                       {"effort=.5", 0.5},   {"effort=5e-05", 5e-05}, {"effort=1e-1", 0.1}, {"effort=0.100000", 0.1},
                       {"effort=-0.0", 0.0}, {"effort=1E0,name=x", 1}};
  for (auto const& each : written) EXPECT_EQ(parse_options(each.text).effort, each.value) << each.text;
}

class c_options : public testing::Test {
protected:
  static void SetUpTestSuite() { simulator::load({.devices = 2}); }
  void SetUp() override { simulator::clear_driver_calls(); }
  void TearDown() override {
    EXPECT_EQ(simulator::run_until_idle(), 0u);
    for (auto const& finding : simulator::take_findings()) ADD_FAILURE() << finding.text;
  }

  struct drawn {
    std::uint64_t pages;
    std::uint64_t chunks;
    friend bool operator==(drawn const&, drawn const&) = default;
  };
  static constexpr drawn a_page{1, 0}, a_chunk{0, 1};

  /// Returns the driver calls by which a pool with these options gets memory for its first block.
  static drawn drawn_by(char const* options) {
    simulator::clear_driver_calls();
    gpumem_pool* pool = nullptr;
    void* block = nullptr;
    EXPECT_EQ(gpumem_make_pool(0, options, &pool), GPUMEM_GRANTED) << gpumem_last_error();
    EXPECT_EQ(gpumem_allocate_sync(pool, 1000, GPUMEM_ALIGNMENT, &block), GPUMEM_GRANTED) << gpumem_last_error();
    EXPECT_EQ(gpumem_free_sync(pool, block, 1000), GPUMEM_GRANTED);
    EXPECT_EQ(gpumem_release(pool), GPUMEM_GRANTED);
    auto calls = simulator::report().driver_calls;
    return {calls["cuMemCreate"], calls["cuMemAlloc"]};
  }
  static void expect_refused(char const* options, char const* sentence) {
    gpumem_pool* pool = nullptr;
    EXPECT_EQ(gpumem_make_pool(0, options, &pool), GPUMEM_INVALID_ARGUMENT) << options;
    EXPECT_THAT(gpumem_last_error(), HasSubstr(sentence)) << options;
    EXPECT_EQ(pool, nullptr);
  }
};

TEST_F(c_options, pool_maps_pages_unless_the_options_say_chunks) {
  EXPECT_EQ(drawn_by(nullptr), a_page);
  EXPECT_EQ(drawn_by("limit=1GiB"), a_page);
  EXPECT_EQ(drawn_by("pages=on"), a_page);
  EXPECT_EQ(drawn_by("limit=2MiB"), a_page);
  EXPECT_EQ(drawn_by("hardened=on"), a_page);
  EXPECT_EQ(drawn_by("pages=off"), a_chunk);
  EXPECT_EQ(drawn_by("pages=off,effort=1"), a_chunk);
}

TEST_F(c_options, pool_allocates_chunks_if_its_limit_is_below_a_page) {
  EXPECT_EQ(drawn_by("limit=1MiB"), a_chunk);
  EXPECT_EQ(drawn_by("limit=1MiB,pages=on"), a_chunk);
}

TEST_F(c_options, unknown_options_are_refused) {
  expect_refused("limt=8GiB",
                 "'limt' is unknown; the options are chunk_size, cross_stream, effort, failure_report, guard, "
                 "hardened, history, initial_size, largest_block, limit, max_overtakes, name, pages, "
                 "pass_through, poison, quarantine, release_threshold, shard_per_thread, "
                 "smallest_block, stall_timeout");
  expect_refused("page=off", "'page' is unknown");
  expect_refused("=3", "'' is unknown");
  expect_refused("limit", "'limit' has no value");
  expect_refused("effort", "'effort' has no value");
  expect_refused("limit=", "'limit' has an empty value");
  expect_refused("pages=", "'pages' has an empty value");
  expect_refused("limit=8GiB,limit=9GiB", "'limit' is given twice");
  expect_refused("pages=on,pages=on", "'pages' is given twice");
  expect_refused("limit=8GiB,", "missing between commas");
  expect_refused(",", "missing between commas");
}

TEST_F(c_options, malformed_sizes_and_words_are_refused) {
  expect_refused("limit=8 gigs", "'limit' is not a size: '8 gigs'");
  for (auto const* size : {"-1", "1.5", "1.GiB", ".5GiB", "1e9", "0x10", "99999999999999999999", "99999999TiB"}) {
    expect_refused(("limit=" + std::string{size}).c_str(), "is not a size");
  }
  expect_refused("hardened=yes", "'hardened' must be on or off, not 'yes'");
  expect_refused("pages=no", "'pages' must be on or off, not 'no'");
  expect_refused("pages=0", "'pages' must be on or off, not '0'");
  expect_refused("pages=Off", "'pages' must be on or off, not 'Off'");
  expect_refused("cross_stream=maybe", "'cross_stream' must be ordered, completed or wait, not 'maybe'");
}

TEST_F(c_options, effort_outside_0_to_1_is_refused) {
  for (auto const* text :
       {"-0.1",  "1.0000001", "2",    "5%",      "0,1",    "nan", "-nan", "NaN", "nan(1)", "inf", "-inf",
        "1e400", "1e-400",    "0.1x", "0.1 0.2", "0x1p-1", "0x0", "+0.1", "1e",  ".",      "much"}) {
    auto const options = "effort=" + std::string{text};
    if (std::string_view{text} == "0,1") {
      expect_refused(options.c_str(), "'1' has no value");
    } else {
      expect_refused(options.c_str(),
                     ("'effort' must be a number from 0 to 1, not '" + std::string{text} + "'").c_str());
    }
  }
}

TEST_F(c_options, malformed_counts_and_times_are_refused) {
  for (auto const* text : {"-1", "1.5", "x", "99999999999"})
    expect_refused(("max_overtakes=" + std::string{text}).c_str(), "'max_overtakes' must be a whole number");
  for (auto const* text : {"1", "1ms", "-1s", "nans", "1e9s", "s"})
    expect_refused(("stall_timeout=" + std::string{text}).c_str(), "'stall_timeout' must be a time of at most a year");
}

TEST_F(c_options, contradicting_options_are_refused) {
  expect_refused("limit=1MiB,initial_size=2MiB", "initial_size is larger than its limit");
  expect_refused("limit=1", "256 bytes at least");
  expect_refused("quarantine=1MiB", "not hardened");
  gpumem_pool* pool = nullptr;
  EXPECT_EQ(gpumem_make_pool(7, nullptr, &pool), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("there is no device 7; the device count is 2"));
  EXPECT_EQ(gpumem_make_pool(-1, nullptr, &pool), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("there is no device -1"));
  EXPECT_EQ(pool, nullptr);
  EXPECT_EQ(simulator::report().bytes_allocated, 0u);
}

} // namespace
