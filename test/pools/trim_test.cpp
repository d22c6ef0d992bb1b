// trim() of a pool where no free has recorded an event, and the times for which synchronize() waits.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <chrono>
#include <cstddef>
#include <stdexcept>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace gpumem::literals;

class trim : public simulated {};

// The pool does not know that the caller has waited for the device. trim() records events and polls them for
// microseconds, in which a loaded machine may not run the simulated device: one of 20 rounds must succeed.
TEST_F(trim, after_a_wait_for_the_device_gives_all_memory_back_at_once) {
  gpumem::device const device{0};
  std::size_t given = 0;
  for (int round = 0; round < 20 && given != 8_MiB; ++round) {
    gpumem::stream a{device}, b{device};
    gpumem::pool_resource r{device};
    auto* const of_a = r.allocate(a, 4_MiB);
    auto* const of_b = r.allocate(b, 4_MiB);
    for (auto* const each : {of_a, of_b}) simulator::work(each == of_a ? a : b, {simulator::write(each, 4_MiB)});
    r.deallocate(a, of_a, 4_MiB);
    r.deallocate(b, of_b, 4_MiB);
    simulator::run_until_idle();
    given = r.trim();
  }
  EXPECT_EQ(given, 8_MiB);
}

// Work that ends after an hour is not awaited by short times; work that ends soon is, by the longest ones.
TEST_F(trim, synchronize_takes_every_time) {
  using std::chrono::nanoseconds;
  for (bool const hardened : {false, true}) {
    gpumem::stream a{gpumem::device{0}};
    gpumem::pool_resource r{gpumem::device{0}, {.hardened = {.enabled = hardened}}};
    auto const free_in_use_for = [&](nanoseconds time) {
      auto* const p = r.allocate(a, 4_MiB);
      simulator::work(a, {simulator::write(p, 4_MiB)}, time);
      r.deallocate(a, p, 4_MiB);
    };
    for (auto const longest : {nanoseconds::max(), nanoseconds::max() - nanoseconds{1}}) {
      free_in_use_for(std::chrono::microseconds{1});
      EXPECT_TRUE(r.synchronize(longest)) << longest.count();
    }
    free_in_use_for(std::chrono::hours{1});
    for (auto const longest : {nanoseconds::min(), nanoseconds{-1}, nanoseconds{0}}) r.synchronize(longest);
    simulator::run_until_idle();
  }
  EXPECT_THROW(simulator::work(gpumem::stream{gpumem::device{0}}, {}, nanoseconds{-1}), std::invalid_argument);
}

} // namespace
