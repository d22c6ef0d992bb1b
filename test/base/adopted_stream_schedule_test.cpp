// An adopted stream whose promise ends while another thread covers frees on it, under schedules that a seed replays.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

// The library's thread covers frees on an adopted stream by its handle. It must not do so after the promise has ended.
TEST(adopted_stream_schedule, no_thread_uses_the_handle_after_the_promise) {
  gpumem::device_guard const current{gpumem::device{0}};
  auto const& driver = gpumem::driver_api::driver();
  test::schedule_seeds{100}.each([&](std::uint64_t seed) {
    CUstream handle = nullptr;
    ASSERT_EQ(driver.stream_create(&handle, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    std::optional<gpumem::stream> promised{gpumem::stream::adopt(handle)};
    auto& timeline = promised->key().identity().timeline();
    std::vector<std::function<void()>> bodies;
    bodies.emplace_back([&] {
      for (int i = 0; i < 3; ++i) timeline.cover(std::nullopt);
    });
    bodies.emplace_back([&] {
      promised.reset();
      EXPECT_EQ(driver.stream_destroy(handle), CUDA_SUCCESS);
    });
    gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
    gpumem::simulator::run_until_idle();
    for (auto const& finding : gpumem::simulator::take_findings()) FAIL() << finding.text << "; GPUMEM_SEED=" << seed;
  });
}

} // namespace
