// The pages of a store: moves between address ranges, and pages that are kept although they are mapped nowhere.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_pages.hpp"

#include <array>
#include <cstddef>
#include <memory>

namespace {

using gpumem::detail::page_store;
using gpumem::extend::page_extent;
using gpumem::extend::page_origin;
using gpumem::extend::virtual_pages;

class page_store_test : public virtual_pages_test {
protected:
  static std::uint64_t created() { return gpumem::driver_api::driver_calls("cuMemCreate"); }

  std::shared_ptr<page_store> store = std::make_shared<page_store>(gpumem::device{0}, gpumem::virtual_pages_options{});
  virtual_pages low{store, 256 * mib, 256 * mib}, high{store, 256 * mib, 256 * mib};
};

TEST_F(page_store_test, pages_of_several_ranges_move_into_one_with_their_contents) {
  gpumem::stream stream{gpumem::device{0}};
  map(low, 0, 4 * mib, 2 * mib);
  map(high, 8 * mib, 2 * mib);
  fill(stream, at(low, 2 * mib), 7, 2 * mib);
  fill(stream, at(high, 8 * mib), 8, 2 * mib);
  stream.synchronize();
  auto const before = created();
  std::array const runs{page_origin{&low, {2 * mib, 2 * mib}}, page_origin{&high, {8 * mib, 2 * mib}}};
  auto const there = high.move(runs, 16 * mib);
  ASSERT_TRUE(there);
  EXPECT_EQ(*there, (page_extent{16 * mib, 4 * mib}));
  EXPECT_EQ(value_at(at(high, 16 * mib)), 7u);
  EXPECT_EQ(value_at(at(high, 18 * mib)), 8u);
  EXPECT_EQ(low.pages(), 1u);
  EXPECT_EQ(high.pages(), 2u);
  EXPECT_EQ(store->held_bytes(), 6 * mib);
  EXPECT_EQ(created(), before);
}

TEST_F(page_store_test, kept_pages_count_as_held_and_are_mapped_without_new_memory) {
  map(low, 0, 8 * mib, 4 * mib);
  EXPECT_TRUE(low.unmap(0, 8 * mib, true));
  EXPECT_EQ(store->kept_bytes(), 8 * mib);
  EXPECT_EQ(store->held_bytes(), 8 * mib);
  EXPECT_EQ(low.mapped_bytes(), 0u);
  EXPECT_EQ(mappings(), 0u);
  auto const before = created();
  map(high, 0, 6 * mib, 2 * mib); // a kept page, and a new one for the rest
  EXPECT_EQ(created() - before, 1u);
  EXPECT_EQ(store->kept_bytes(), 4 * mib);
  EXPECT_EQ(high.mapped_bytes(), 6 * mib);
  store->release_kept(0);
  EXPECT_EQ(device_bytes(), 6 * mib);
}

TEST_F(page_store_test, page_is_kept_only_once_it_is_mapped_nowhere) {
  map(low, 0, 2 * mib);
  ASSERT_TRUE(low.alias(0, 8 * mib));
  EXPECT_TRUE(low.unmap(0, 2 * mib, true));
  EXPECT_EQ(store->kept_bytes(), 0u) << "the alias shows it";
  EXPECT_TRUE(low.unmap(8 * mib, 2 * mib, true));
  EXPECT_EQ(store->kept_bytes(), 2 * mib);
}

TEST_F(page_store_test, page_that_the_driver_does_not_unmap_is_not_kept) {
  map(low, 0, 2 * mib);
  gpumem::simulator::fail_call("cuMemUnmap", 1, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(low.unmap(0, 2 * mib, true));
  EXPECT_EQ(store->kept_bytes(), 0u);
  EXPECT_EQ(mappings(), 1u);
}

TEST_F(page_store_test, kept_pages_go_first_when_the_device_is_full) {
  map(low, 0, 8 * mib, 8 * mib);
  EXPECT_TRUE(low.unmap(0, 8 * mib, true));
  gpumem::simulator::fail_allocation(1);
  EXPECT_TRUE(high.map(0, 2 * mib, 2 * mib)) << "the kept page is too large for it";
  EXPECT_EQ(store->held_bytes(), 2 * mib);
  EXPECT_EQ(store->kept_bytes(), 0u);
}

TEST_F(page_store_test, kept_pages_go_with_the_store) {
  auto const held = device_bytes();
  {
    auto const other = std::make_shared<page_store>(gpumem::device{0}, gpumem::virtual_pages_options{});
    virtual_pages pages{other, 64 * mib, 64 * mib};
    map(pages, 0, 4 * mib, 2 * mib);
    EXPECT_TRUE(pages.unmap(0, 4 * mib, true));
    EXPECT_EQ(device_bytes(), held + 4 * mib);
  }
  EXPECT_EQ(device_bytes(), held);
}

} // namespace
