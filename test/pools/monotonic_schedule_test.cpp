// The last handle and the last block of a monotonic_resource end on two threads, under schedules that a seed replays.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

import gpumem;

namespace {

using scratch = gpumem::monotonic_resource<gpumem::statistics_adaptor<gpumem::cuda_resource>>;

TEST(monotonic_schedule, ends_once) {
  gpumem::device const where{0};
  gpumem::device_guard const current{where};
  gpumem::stream on{where};
  gpumem::statistics_adaptor<gpumem::cuda_resource> upstream{gpumem::cuda_resource{where}};
  test::schedule_seeds{100}.each([&](std::uint64_t seed) {
    std::optional<scratch> made{std::in_place, upstream, gpumem::monotonic_options{.region_size = 1 << 16}};
    auto first = gpumem::acquire(*made, on, 256).wait(), second = gpumem::acquire(*made, on, 256).wait();
    std::vector<std::function<void()>> bodies;
    bodies.emplace_back([&] { made.reset(); });
    bodies.emplace_back([&] { first.reset(); });
    bodies.emplace_back([&] { second.reset(); });
    gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 3);
    gpumem::detail::schedule::run(seed, {[&] { // the library's thread gives the memory back
                                    for (int i = 0; i < 100 && upstream.counters().bytes.value > 0; ++i)
                                      gpumem::detail::sync::sleep_for(std::chrono::milliseconds{10});
                                  }});
    ASSERT_EQ(upstream.counters().bytes.value, 0) << "GPUMEM_SEED=" << seed;
  });
}

} // namespace
