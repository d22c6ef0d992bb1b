// Virtual pages of a device that reports a sticky error. A program of its own, since a device stays lost for the life
// of the process.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_pages.hpp"

#include <optional>

#include <cuda.h>

namespace {

class virtual_pages_lost : public virtual_pages_test {
protected:
  void TearDown() override {}
};

TEST_F(virtual_pages_lost, loss_is_noticed_by_unmap) {
  gpumem::device const where{0};
  gpumem::extend::virtual_pages pages{where};
  map(pages, 0, 4 * mib);
  gpumem::simulator::fail_call("cuMemUnmap", 1, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_TRUE(pages.unmap(0, 4 * mib));
  EXPECT_TRUE(where.lost());
  EXPECT_EQ(pages.pages(), 0u);
  EXPECT_EQ(pages.unmap(0, 2 * mib), false);
  EXPECT_EQ(pages.mapped_bytes(), 0u) << "nothing is mapped";
}

TEST_F(virtual_pages_lost, calls_after_the_loss_make_no_driver_call) {
  gpumem::device const where{1};
  gpumem::virtual_pages_options options;
  int heard = 0;
  options.exportable = true;
  options.on_unmapping = [&](void*, std::size_t) { ++heard; };
  std::optional<gpumem::extend::virtual_pages> pages{std::in_place, where, options};
  map(*pages, 0, 8 * mib);
  gpumem::simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  auto const got = pages->map(8 * mib, 2 * mib);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error(), (gpumem::failure{gpumem::outcome::device_lost, CUDA_ERROR_ILLEGAL_ADDRESS, 2 * mib}));
  EXPECT_TRUE(where.lost());
  auto const calls = gpumem::driver_api::driver_calls();
  EXPECT_EQ(why_not(pages->map(8 * mib, 2 * mib)), gpumem::outcome::device_lost);
  EXPECT_EQ(why_not(pages->move(0, 8 * mib)), gpumem::outcome::device_lost);
  EXPECT_EQ(pages->export_page(pages->base()).error().reason, gpumem::outcome::device_lost);
  EXPECT_TRUE(pages->unmap(0, 2 * mib));
  EXPECT_EQ(pages->mapped_bytes(), 6 * mib);
  pages.reset();
  EXPECT_EQ(gpumem::driver_api::driver_calls(), calls);
  EXPECT_EQ(heard, 0) << "no registration can be undone any more";
}

} // namespace
