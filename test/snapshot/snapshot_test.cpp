// Snapshots of pools, and what is read back from their files.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

import gpumem;
import gpumem.snapshot;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

class snapshot : public testing::Test {
protected:
  static void SetUpTestSuite() { gpumem::simulator::load({.mode = gpumem::simulator::stepping::manual}); }
  static std::string json_of(gpumem::memory_snapshot const& seen) {
    std::ostringstream text;
    gpumem::write_json(seen, text);
    return text.str();
  }
  static std::string pickle_of(gpumem::memory_snapshot const& seen) {
    std::ostringstream text;
    gpumem::write_pickle(seen, text);
    return text.str();
  }
  gpumem::device device{0};
  gpumem::stream stream{device};
};

TEST_F(snapshot, has_labels_of_its_own) {
  gpumem::pool_resource pool{device, {.name = "named"}};
  static_cast<void>(gpumem::detail::label_number("a text of another pool"));
  auto const first = pool.acquire(stream, 2 * MiB, {.label = "first"}).wait();
  auto const second = pool.acquire(stream, 2 * MiB, {.label = "second"}).wait();
  auto const third = pool.acquire(stream, 2 * MiB, {.label = "first"}).wait();
  auto const seen = gpumem::take_snapshot(pool);
  EXPECT_EQ(seen.name, "named");
  EXPECT_EQ(seen.device, 0);
  EXPECT_EQ(seen.labels.size(), 3u); // none, first, second
  std::string all;
  for (auto const& each : seen.blocks) all += seen.labels[each.label] + ";";
  EXPECT_NE(all.find("first;second;first;"), std::string::npos) << all;
}

TEST_F(snapshot, chunks_and_special_pools_have_snapshots) {
  for (auto const& options : {gpumem::pool_options{.pages = false}, gpumem::pool_options{.pass_through = true},
                              gpumem::pool_options{.hardened = {.enabled = true}}}) {
    gpumem::pool_resource pool{device, options};
    auto const block = pool.acquire(stream, 1000).wait();
    auto const seen = gpumem::take_snapshot(pool);
    std::size_t live = 0;
    for (auto const& each : seen.blocks) live += each.state == gpumem::memory_state::live;
    EXPECT_EQ(live, 1u);
    EXPECT_EQ(seen.statistics.live, 1000u);
    EXPECT_NE(json_of(seen).find("\"live\":1000"), std::string::npos);
  }
}

TEST_F(snapshot, numbers_have_no_separators_in_any_locale) {
  struct grouping : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  gpumem::pool_resource pool{device};
  auto const block = pool.acquire(stream, 5 * MiB).wait();
  auto const seen = gpumem::take_snapshot(pool);
  auto const plain = json_of(seen);
  std::ostringstream text;
  text.imbue(std::locale{std::locale::classic(), new grouping});
  gpumem::write_json(seen, text);
  EXPECT_EQ(text.str(), plain);
}

TEST_F(snapshot, file_that_cannot_be_written_is_named) {
  gpumem::memory_snapshot const nothing;
  for (auto const* const path : {"/no/such/folder/file", "/dev/full"}) {
    try {
      gpumem::write_snapshot(nothing, path);
      ADD_FAILURE() << path << " was written";
    } catch (std::runtime_error const& error) {
      EXPECT_NE(std::string{error.what()}.find(path), std::string::npos) << error.what();
    }
  }
}

TEST_F(snapshot, pickle_is_read_back) {
  gpumem::pool_resource pool{device};
  auto const first = pool.acquire(stream, 3 * MiB, {.label = "weights"}).wait();
  auto const second = pool.acquire(stream, 1000).wait();
  auto* const freed = pool.allocate(stream, 5 * MiB);
  pool.deallocate(stream, freed, 5 * MiB);
  auto const seen = gpumem::take_snapshot(pool);
  auto const read = gpumem::snapshot_of_pickle(pickle_of(seen));
  EXPECT_EQ(read.device, 0);
  EXPECT_EQ(read.statistics.live, seen.statistics.live);
  EXPECT_EQ(read.statistics.reserved, seen.statistics.reserved);
  ASSERT_EQ(read.blocks.size(), seen.blocks.size());
  for (std::size_t i = 0; i < read.blocks.size(); ++i) {
    auto const &a = read.blocks[i], &b = seen.blocks[i];
    EXPECT_EQ(a.base, b.base);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(a.begins_region, b.begins_region);
    EXPECT_EQ(a.state == gpumem::memory_state::live, b.state == gpumem::memory_state::live);
    EXPECT_EQ(read.labels[a.label], seen.labels[b.label]);
  }
}

} // namespace
