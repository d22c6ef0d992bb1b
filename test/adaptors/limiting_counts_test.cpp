// The cost of waiting for a limiting_adaptor: host allocations, and driver calls in a free.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"
#include "../support/allocation_count.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"

namespace {

using gpumem::limiting_adaptor;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

class limiting_counts : public gpumem_test::waiting_fixture {
protected:
  // Returns the host allocations of a request that waits, after a warm-up.
  template <class Resource> std::optional<std::size_t> allocations_of_a_wait(Resource subject) {
    std::optional<std::size_t> allocations;
    auto body = [&]() -> gpumem::task<> {
      auto const before = test::host_allocations();
      auto const mine = co_await subject.acquire(a, 60 * MiB, {.resume_on = &executor});
      allocations = test::host_allocations() - before;
    };
    for (int i = 0; i < 8; ++i) {
      simulator::run_until_idle();
      gpumem::extend::identify(a, device).identity().timeline().poll(); // events return to their pool
      auto block = subject.acquire(a, 60 * MiB).wait();
      auto const running = test::start(body());
      block.reset();
      allocations.reset();
      run_all();
    }
    return allocations;
  }
};

TEST_F(limiting_counts, wait_for_the_limit_makes_no_host_allocation) {
  gpumem::cuda_resource source;
  auto const before = test::host_allocations();
  void* const block = source.allocate(a, 60 * MiB);
  auto const its_own = test::host_allocations() - before;
  source.deallocate(a, block, 60 * MiB);
  EXPECT_EQ(allocations_of_a_wait(limiting_adaptor{source, {.limit = 100 * MiB}}), its_own);
}

TEST_F(limiting_counts, wait_for_a_pool_below_two_limits_makes_no_host_allocation) {
  gpumem::pool_resource pool{device, {.limit = 100 * MiB}};
  EXPECT_EQ(allocations_of_a_wait(limiting_adaptor{limiting_adaptor{pool, {.limit = 150 * MiB}}, {.limit = 150 * MiB}}),
            0u);
}

TEST_F(limiting_counts, request_that_does_not_wait_makes_no_host_allocation) {
  limiting_adaptor subject{gpumem::pool_resource{device}, {.limit = 100 * MiB}};
  subject.deallocate(a, subject.allocate(a, MiB), MiB);
  auto const before = test::host_allocations();
  subject.deallocate(a, subject.allocate(a, MiB), MiB);
  EXPECT_EQ(test::host_allocations() - before, 0u);
}

TEST_F(limiting_counts, free_makes_no_driver_call_on_another_stream) {
  limiting_adaptor subject{gpumem::pool_resource{device}, {.limit = 100 * MiB}};
  auto block = subject.acquire(a, 60 * MiB).wait();
  request second{*this, subject, b, 60 * MiB};
  auto const other_calls = [] {
    return gpumem::driver_api::driver_calls() - gpumem::driver_api::driver_calls("cuStreamIsCapturing");
  };
  auto const calls = other_calls();
  block.reset();
  EXPECT_EQ(other_calls(), calls) << "the free asks only whether its own stream captures";
  run_all();
  EXPECT_EQ(second.ended(), gpumem::outcome::granted);
}

} // namespace
