// Virtual pages that are mapped twice, that move, and that are pinned.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_pages.hpp"

#include <unistd.h>

#include <chrono>
#include <vector>

#include <cuda.h>

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using gpumem::outcome;
using gpumem::extend::page_extent;
using gpumem::extend::page_info;

class virtual_pages_move : public virtual_pages_test {};

TEST_F(virtual_pages_move, alias_shows_the_same_bytes_and_uses_no_memory) {
  gpumem::extend::virtual_pages pages;
  gpumem::stream stream{gpumem::device{0}};
  auto const before = device_bytes();
  map(pages, 0, 4 * mib, 4 * mib);
  fill(stream, at(pages, 0), 42, 4 * mib);
  auto const there = pages.alias(0, 16 * mib);
  ASSERT_TRUE(there);
  EXPECT_EQ(*there, (page_extent{16 * mib, 4 * mib}));
  EXPECT_EQ(pages.page_of(at(pages, 0)), (page_info{{0, 4 * mib}, false, true}));
  EXPECT_EQ(pages.page_of(at(pages, 17 * mib)), (page_info{{16 * mib, 4 * mib}, false, true}));
  EXPECT_EQ(pages.mapped_bytes(), 4 * mib);
  EXPECT_EQ(pages.pages(), 2u);
  EXPECT_EQ(device_bytes(), before + 4 * mib);
  fill(stream, at(pages, 18 * mib), 43, 2 * mib);
  stream.synchronize();
  EXPECT_EQ(value_at(at(pages, 16 * mib)), 42u);
  EXPECT_EQ(value_at(at(pages, 2 * mib)), 43u);
  EXPECT_TRUE(pages.unmap(0, 4 * mib));
  EXPECT_EQ(device_bytes(), before + 4 * mib);
  EXPECT_EQ(pages.page_of(at(pages, 17 * mib)), (page_info{{16 * mib, 4 * mib}}));
  EXPECT_EQ(value_at(at(pages, 16 * mib)), 42u);
  EXPECT_TRUE(pages.unmap(16 * mib, 4 * mib));
  EXPECT_EQ(device_bytes(), before);
}

TEST_F(virtual_pages_move, alias_needs_a_mapped_page_and_free_addresses) {
  gpumem::extend::virtual_pages pages{gpumem::device{0}, {.address_space = 64 * mib}};
  map(pages, 0, 8 * mib, 4 * mib);
  EXPECT_EQ(why_not(pages.alias(2 * mib, 32 * mib)), outcome::invalid_argument) << "no page begins there";
  EXPECT_EQ(why_not(pages.alias(0, 4 * mib)), outcome::invalid_argument);
  EXPECT_EQ(why_not(pages.alias(0, 33 * mib)), outcome::invalid_argument);
  EXPECT_EQ(why_not(pages.alias(0, 62 * mib)), outcome::too_large);
  EXPECT_EQ(why_not(pages.move(0, 62 * mib)), outcome::too_large);
  EXPECT_EQ(pages.pages(), 2u);
}

TEST_F(virtual_pages_move, page_keeps_its_bytes_when_it_moves) {
  gpumem::extend::virtual_pages pages;
  gpumem::stream stream{gpumem::device{0}};
  map(pages, 0, 2 * mib);
  fill(stream, at(pages, 0), 9, 2 * mib);
  stream.synchronize();
  auto const calls = gpumem::driver_api::driver_calls("cuMemCreate") + gpumem::driver_api::driver_calls("cuMemRelease");
  auto const there = pages.move(0, 8 * mib);
  ASSERT_TRUE(there);
  EXPECT_EQ(*there, (page_extent{8 * mib, 2 * mib}));
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuMemCreate") + gpumem::driver_api::driver_calls("cuMemRelease"), calls);
  EXPECT_FALSE(pages.page_of(at(pages, 0)));
  EXPECT_EQ(value_at(at(pages, 8 * mib)), 9u);
  EXPECT_EQ(pages.find_extent(2 * mib), 0u);
}

TEST_F(virtual_pages_move, several_ranges_move_side_by_side_or_not_at_all) {
  gpumem::extend::virtual_pages pages;
  gpumem::stream stream{gpumem::device{0}};
  map(pages, 0, 12 * mib, 2 * mib);
  fill(stream, at(pages, 2 * mib), 7, 2 * mib);
  fill(stream, at(pages, 8 * mib), 8, 4 * mib);
  stream.synchronize();
  auto const move = [&](std::vector<page_extent> const& runs) {
    std::vector<gpumem::extend::page_origin> origins;
    for (auto const& run : runs) origins.push_back({&pages, run});
    return pages.move(origins, 32 * mib);
  };
  EXPECT_EQ(why_not(move({})), outcome::invalid_argument);
  EXPECT_EQ(why_not(move({{2 * mib, 2 * mib}, {7 * mib, 4 * mib}})), outcome::invalid_argument)
      << "no page begins there";
  EXPECT_EQ(why_not(move({{2 * mib, 2 * mib}, {8 * mib, 3 * mib}})), outcome::invalid_argument) << "no page ends there";
  EXPECT_TRUE(pages.pin(at(pages, 10 * mib), 1));
  EXPECT_EQ(why_not(move({{2 * mib, 2 * mib}, {8 * mib, 4 * mib}})), outcome::invalid_argument) << "pinned";
  pages.unpin(at(pages, 10 * mib), 1);
  EXPECT_EQ(pages.pages(), 6u);
  EXPECT_EQ(pages.mapped_end(), 12 * mib);
  auto const rights = gpumem::driver_api::driver_calls("cuMemSetAccess");
  auto const there = move({{8 * mib, 4 * mib}, {2 * mib, 2 * mib}});
  ASSERT_TRUE(there);
  EXPECT_EQ(*there, (page_extent{32 * mib, 6 * mib}));
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuMemSetAccess") - rights, 1u);
  EXPECT_EQ(pages.mapped_bytes(), 12 * mib);
  EXPECT_EQ(value_at(at(pages, 34 * mib)), 8u);
  EXPECT_EQ(value_at(at(pages, 36 * mib)), 7u);
  EXPECT_EQ(pages.find_extent(4 * mib), 8 * mib);
}

TEST_F(virtual_pages_move, checker_finds_a_page_unmapped_before_its_uses_are_complete) {
  gpumem::extend::virtual_pages pages;
  gpumem::stream stream{gpumem::device{0}}, other{gpumem::device{0}};
  gpumem::event happened{gpumem::device{0}};
  map(pages, 0, 4 * mib);
  simulator::work(stream, {simulator::write(at(pages, 0), 4 * mib)}, 1us);
  happened.record(stream);
  other.wait(happened);
  EXPECT_TRUE(pages.alias(0, 8 * mib)) << "removes nothing";
  EXPECT_TRUE(simulator::report().findings.empty());
  EXPECT_TRUE(pages.unmap(0, 2 * mib));
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, simulator::finding_kind::premature_unmap);
  happened.synchronize();
  EXPECT_TRUE(pages.unmap(2 * mib, 2 * mib));
}

TEST_F(virtual_pages_move, pinned_pages_stay_where_they_are) {
  gpumem::extend::virtual_pages pages;
  map(pages, 0, 8 * mib);
  EXPECT_FALSE(pages.pin(at(pages, 7 * mib), 2 * mib)) << "its end is not mapped";
  EXPECT_FALSE(pages.pin(at(pages, 0), 0));
  EXPECT_FALSE(pages.pin(at(pages, 0), SIZE_MAX));
  EXPECT_TRUE(pages.pin(at(pages, 3 * mib), 2 * mib)) << "two pages";
  EXPECT_TRUE(pages.pin(at(pages, 3 * mib), 1));
  EXPECT_FALSE(page_at(pages, 0).pinned);
  EXPECT_TRUE(page_at(pages, 2 * mib).pinned);
  EXPECT_TRUE(page_at(pages, 4 * mib).pinned);
  EXPECT_FALSE(pages.unmap(2 * mib, 2 * mib));
  EXPECT_FALSE(pages.unmap(0, 8 * mib));
  auto const moved = pages.move(2 * mib, 16 * mib);
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error(), (gpumem::failure{outcome::invalid_argument, CUDA_ERROR_NOT_PERMITTED, 2 * mib}));
  pages.unpin(at(pages, 3 * mib), 2 * mib);
  EXPECT_TRUE(page_at(pages, 2 * mib).pinned) << "it was pinned twice";
  EXPECT_FALSE(page_at(pages, 4 * mib).pinned);
  pages.unpin(at(pages, 2 * mib), 1);
  pages.unpin(at(pages, 2 * mib), 1);
  EXPECT_TRUE(pages.pin(at(pages, 2 * mib), 1));
  pages.unpin(at(pages, 2 * mib), 1);
  EXPECT_TRUE(pages.unmap(0, 8 * mib));
}

TEST_F(virtual_pages_move, exported_page_is_pinned) {
  gpumem::extend::virtual_pages closed;
  map(closed, 0, 2 * mib);
  EXPECT_EQ(closed.export_page(closed.base()).error().reason, outcome::invalid_argument);
  gpumem::extend::virtual_pages pages{gpumem::device{0}, {.exportable = true}};
  EXPECT_EQ(pages.export_page(pages.base()).error().reason, outcome::invalid_argument) << "nothing is there";
  map(pages, 0, 4 * mib);
  simulator::fail_call("cuMemExportToShareableHandle", 1, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(pages.export_page(at(pages, 3 * mib)).error().code, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_FALSE(page_at(pages, 3 * mib).pinned);
  auto const file = pages.export_page(at(pages, 3 * mib));
  ASSERT_TRUE(file);
  EXPECT_EQ(file->base, at(pages, 2 * mib));
  EXPECT_EQ(file->bytes, 2 * mib);
  EXPECT_EQ(::close(file->descriptor), 0);
  EXPECT_FALSE(pages.unmap(2 * mib, 2 * mib));
  EXPECT_TRUE(pages.unmap(0, 2 * mib));
  pages.unpin(at(pages, 3 * mib), 1);
  EXPECT_TRUE(pages.unmap(2 * mib, 2 * mib));
}

} // namespace
