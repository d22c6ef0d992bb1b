// Which resource, and how they are composed: the examples of a guide on choosing one.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>
#include <type_traits>
#include <utility>

import gpumem;

namespace {

using namespace gpumem::literals;

class choosing : public simulated {
protected:
  gpumem::device const device_{0};
};

// Each of the guide's resources, set as the device's current one and used by code that knows only that.
TEST_F(choosing, every_resource_can_be_the_current_resource) {
  auto const use = [&](gpumem::any_pool resource) {
    gpumem::scoped_current_resource const scope{device_, std::move(resource)};
    gpumem::stream stream{device_};
    gpumem::buffer bytes{stream, 1_MiB};
    bytes.fill(std::byte{7});
    std::byte last{};
    bytes.read(&last, 1, 1_MiB - 1);
    EXPECT_EQ(last, std::byte{7});
  };
  use(gpumem::any_pool{gpumem::async_resource{device_}});
  use(gpumem::any_pool{gpumem::cuda_resource{device_}});
  use(gpumem::any_pool{gpumem::pool_resource{gpumem::cuda_resource{device_}, {.initial_size = 1_MiB, .limit = 4_GiB}}});
  use(gpumem::any_pool{gpumem::pool_resource{gpumem::async_resource{device_}, {.initial_size = 1_MiB}}});
  use(gpumem::any_pool{gpumem::managed_resource{device_}});
}

TEST_F(choosing, statistics_adaptor_wraps_any_resource) {
  gpumem::statistics_adaptor counted{gpumem::async_resource{device_}};
  gpumem::stream stream{device_};
  auto* const block = counted.allocate(stream, 1000);
  EXPECT_EQ(counted.counters().bytes, (gpumem::counter{1000, 1000, 1000}));
  counted.deallocate(stream, block, 1000);
  EXPECT_EQ(counted.counters().bytes, (gpumem::counter{0, 1000, 1000}));
}

// A resource that is replaced while its memory is in use: nothing of it is lost.
TEST_F(choosing, current_resource_can_change_while_its_memory_is_live) {
  gpumem::stream stream{device_};
  gpumem::statistics_adaptor counted{gpumem::pool_resource{gpumem::cuda_resource{device_}}};
  gpumem::set_current_resource(device_, gpumem::any_pool{counted});
  {
    gpumem::buffer const held{stream, 64_KiB};
    gpumem::reset_current_resource(device_);
    EXPECT_EQ(counted.counters().bytes.value, 65536);
  }
  EXPECT_EQ(counted.counters().bytes.value, 0);
}

// Two libraries that know nothing of each other share the driver's default pool.
TEST_F(choosing, libraries_share_the_default_pool) {
  gpumem::async_resource_view const one{device_}, other{device_};
  EXPECT_TRUE(one == other);
  EXPECT_EQ(one.handle(), other.handle());
}

} // namespace
