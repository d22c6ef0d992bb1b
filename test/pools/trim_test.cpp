// trim() of a pool where no free has recorded an event.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace gpumem::literals;

class trim : public simulated {};

// The pool does not know that the caller has waited for the device.
TEST_F(trim, after_a_wait_for_the_device_gives_all_memory_back_at_once) {
  gpumem::device const device{0};
  gpumem::stream a{device}, b{device};
  gpumem::pool_resource r{device};
  auto* const of_a = r.allocate(a, 4_MiB);
  auto* const of_b = r.allocate(b, 4_MiB);
  for (auto* const each : {of_a, of_b}) simulator::work(each == of_a ? a : b, {simulator::write(each, 4_MiB)});
  r.deallocate(a, of_a, 4_MiB);
  r.deallocate(b, of_b, 4_MiB);
  simulator::run_until_idle();
  EXPECT_EQ(r.trim(), 8_MiB);
}

} // namespace
