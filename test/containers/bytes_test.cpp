// Sizes as text and as literals, and as a share of a device.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <clocale>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <locale>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include <unistd.h>

import gpumem;

namespace {

using namespace gpumem::literals;
using gpumem::format_bytes;
using gpumem::parse_bytes;

static_assert(1_KiB == 1024 && 2_MiB == 2097152 && 3_GiB == 3221225472 && 4_TiB == 4398046511104);
static_assert(0_GiB == 0 && 17179869183_GiB == 18446744072635809792u);
static_assert(std::is_same_v<decltype(1_KiB), std::size_t>);

// A literal that overflows is not a constant expression.
template <unsigned long long Count>
concept fits_in_gib = requires { typename std::integral_constant<std::size_t, gpumem::operator""_GiB(Count)>; };
static_assert(fits_in_gib<17179869183> && !fits_in_gib<17179869184>);
template <unsigned long long Count>
concept fits_in_kib = requires { typename std::integral_constant<std::size_t, gpumem::operator""_KiB(Count)>; };
static_assert(fits_in_kib<18014398509481983> && !fits_in_kib<18014398509481984>);

TEST(bytes, sizes_are_parsed_with_and_without_unit) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("4096B"), 4096u);
  EXPECT_EQ(parse_bytes("1GiB"), 1_GiB);
  EXPECT_EQ(parse_bytes("1.5MiB"), 3u << 19);
  EXPECT_EQ(parse_bytes("2 KiB"), 2_KiB);
  EXPECT_EQ(parse_bytes("3GB"), 3'000'000'000u);
  EXPECT_EQ(parse_bytes("7 PB"), 7'000'000'000'000'000u);
  EXPECT_EQ(parse_bytes("0.1KiB"), 102u); // the nearest whole number
  EXPECT_EQ(parse_bytes("12.5EiB"), 14411518807585587200u);
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("18446744073709551615"), std::numeric_limits<std::size_t>::max());
}

TEST(bytes, units_are_parsed_in_upper_and_lower_case) {
  for (char const* text : {"2MiB", "2mib", "2MIB", "2 Mib"}) EXPECT_EQ(parse_bytes(text), 2_MiB) << text;
  for (char const* text : {"5kB", "5KB", "5kb"}) EXPECT_EQ(parse_bytes(text), 5000u) << text;
}

TEST(bytes, malformed_sizes_are_refused_with_a_reason) {
  struct refused {
    char const* text;
    char const* why;
  };
  for (auto const& [text, why] : {
           refused{"", "begin with a number"},
           refused{"GiB", "begin with a number"},
           refused{" 1", "begin with a number"},
           refused{"nan", "begin with a number"},
           refused{"inf", "begin with a number"},
           refused{"-1", "negative"},
           refused{"-1GiB", "negative"},
           refused{"1.5", "whole number"},
           refused{"1.5B", "whole number"},
           refused{"1 2", "unit"},
           refused{"1XiB", "unit"},
           refused{"1GiBs", "unit"},
           refused{"1G", "unit"},
           refused{"0x10", "unit"},
           refused{"1e3", "unit"},
           refused{"1GiB ", "unit"},
           refused{"18446744073709551616", "fit"},
           refused{"16777216TiB", "fit"},
           refused{"16EiB", "fit"},
           refused{"99999999.5TiB", "fit"},
       }) {
    try {
      parse_bytes(text);
      ADD_FAILURE() << text;
    } catch (std::invalid_argument const& e) {
      EXPECT_NE(std::string{e.what()}.find("'" + std::string{text} + "'"), std::string::npos) << e.what();
      EXPECT_NE(std::string{e.what()}.find(why), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(parse_bytes(std::string(400, '9') + "GiB"), std::invalid_argument);
}

TEST(bytes, sizes_are_formatted_in_their_largest_unit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1_MiB - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(3u << 19), "1.50 MiB");
  EXPECT_EQ(format_bytes(8'074'952'704), "7.52 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::size_t>::max()), "16.00 EiB");
}

// Sets a locale of C and one of C++ that write 1.5 as "1,5" and 1234567 as "1.234.567".
class comma_locale {
public:
  comma_locale() : made_{make()}, before_{std::locale::global(std::locale{std::locale::classic(), new commas})} {
    setenv("LOCPATH", folder_.c_str(), 1);
    c_ = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  }
  ~comma_locale() {
    std::locale::global(before_);
    std::setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
    std::filesystem::remove_all(folder_);
  }
  // Returns whether the system could make a locale of C.
  bool of_c() const { return c_; }

private:
  class commas final : public std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  int make() {
    std::filesystem::create_directories(folder_);
    auto const made = "localedef -i de_DE -f UTF-8 '" + (folder_ / "de_DE.UTF-8").string() + "' 2> /dev/null";
    return std::system(made.c_str());
  }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("gpumem_locale_" + std::to_string(getpid()));
  int made_;
  std::locale before_;
  bool c_ = false;
};

TEST(bytes, numbers_are_written_the_same_in_every_locale) {
  comma_locale const here;
  EXPECT_EQ(format_bytes(3u << 19), "1.50 MiB");
  EXPECT_EQ(parse_bytes("1.5MiB"), 3u << 19);
  gpumem::out_of_memory const error{gpumem::outcome::exhausted, {.requested = 3 << 19, .live = 1234567}};
  EXPECT_STREQ(error.what(), "gpumem: out of memory (exhausted): requested 1.5 MiB, live 1.2 MiB, reserved 0 B, "
                             "largest free range 0 B; stream 0");
  EXPECT_NE(gpumem::extend::format_row({.bytes = 1234567}).text().find(",1234567,"), std::string_view::npos);
  if (!here.of_c()) GTEST_SKIP() << "localedef has made no locale of C";
}

// Otherwise a request one byte beyond a limit would read as one that fits.
TEST(bytes, sizes_with_the_same_text_are_written_in_bytes_too) {
  auto const text = [](std::size_t requested, std::size_t limit) {
    return gpumem::out_of_memory::describe(gpumem::outcome::too_large,
                                           {.requested = requested, .reserved = 64_MiB, .limit = limit});
  };
  EXPECT_EQ(text(64_MiB + 1, 64_MiB),
            "gpumem: out of memory (too_large): requested 64.0 MiB (67108865 bytes), live 0 B, "
            "reserved 64.0 MiB (67108864 bytes), largest free range 0 B, limit 64.0 MiB "
            "(67108864 bytes); stream 0");
  EXPECT_EQ(text(64_MiB, 64_MiB), "gpumem: out of memory (too_large): requested 64.0 MiB, live 0 B, reserved 64.0 MiB, "
                                  "largest free range 0 B, limit 64.0 MiB; stream 0");
}

TEST(bytes, sizes_in_errors_have_one_decimal) {
  auto const text = [](std::size_t bytes) {
    return gpumem::acquire_error{{gpumem::outcome::stopped, 0, bytes}}.what() + std::string{};
  };
  auto const says = [](char const* size) {
    return std::string{"gpumem: a request for "} + size + " was not granted: stopped";
  };
  EXPECT_EQ(text(1023), says("1023 B"));
  EXPECT_EQ(text(1024), says("1.0 KiB"));
  EXPECT_EQ(text(1_MiB - 1), says("1.0 MiB"));
  EXPECT_EQ(text(1_MiB + 53'000), says("1.1 MiB"));
  EXPECT_EQ(text(1_MiB + 52'000), says("1.0 MiB"));
  EXPECT_EQ(text(std::numeric_limits<std::size_t>::max()), says("16.0 EiB"));
}

TEST(bytes, formatted_sizes_can_be_parsed) {
  for (std::size_t bytes = 1; bytes != 0; bytes <<= 1) EXPECT_EQ(parse_bytes(format_bytes(bytes)), bytes);
}

class device_share : public simulated {};

TEST_F(device_share, percentage_of_free_memory_is_a_multiple_of_256) {
  gpumem::device const first{0};
  auto const free = first.memory().free;
  EXPECT_EQ(gpumem::percent_of_free_device_memory(0, first), 0u);
  EXPECT_EQ(gpumem::percent_of_free_device_memory(100, first), free / 256 * 256);
  for (int percent = 1; percent < 100; ++percent) {
    auto const share = gpumem::percent_of_free_device_memory(percent, first);
    EXPECT_EQ(share % 256, 0u);
    EXPECT_LE(share, free / 100 * percent + percent);
    EXPECT_GE(share + 256, free / 100 * percent);
  }
}

TEST_F(device_share, percentage_follows_the_free_memory_of_the_device) {
  gpumem::device const second{1};
  auto const before = gpumem::percent_of_free_device_memory(50, second);
  gpumem::cuda_resource source{second};
  auto* const block = source.allocate_sync(1_GiB);
  EXPECT_EQ(gpumem::percent_of_free_device_memory(50, second), before - 512_MiB);
  gpumem::device_guard const scope{second};
  EXPECT_EQ(gpumem::percent_of_free_device_memory(50), before - 512_MiB);
  source.deallocate_sync(block, 1_GiB);
}

TEST_F(device_share, percentage_outside_0_to_100_is_refused) {
  EXPECT_THROW(gpumem::percent_of_free_device_memory(-1), std::invalid_argument);
  EXPECT_THROW(gpumem::percent_of_free_device_memory(101), std::invalid_argument);
}

} // namespace
