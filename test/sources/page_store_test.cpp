// The pages of a store: moves between address ranges.
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

TEST_F(page_store_test, memory_goes_with_the_last_mapping) {
  map(low, 0, 2 * mib);
  auto const held = device_bytes();
  ASSERT_TRUE(low.alias(0, 8 * mib));
  EXPECT_TRUE(low.unmap(0, 2 * mib));
  EXPECT_EQ(device_bytes(), held) << "the alias shows it";
  EXPECT_TRUE(low.unmap(8 * mib, 2 * mib));
  EXPECT_EQ(device_bytes(), held - 2 * mib);
  EXPECT_EQ(store->held_bytes(), 0u);
}

} // namespace
