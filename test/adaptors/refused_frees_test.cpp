// Frees that the upstream of adaptors refuses as misuse: no adaptor counts them.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

class refused_frees : public simulated {
protected:
  gpumem::stream stream_{gpumem::device{0}};
};

// Live bytes as the adaptors over a resource count them.
struct live_counts {
  std::size_t bytes;
  std::int64_t counted, freed_in_all;
  friend bool operator==(live_counts const&, live_counts const&) = default;
};

TEST_F(refused_frees, refused_free_counts_nowhere) {
  test::recorded_misuse const recorded;
  gpumem::pool_resource pool{gpumem::cuda_resource{}, {.limit = 8 << 20}};
  gpumem::limiting_adaptor limiting{pool, {.limit = 4 << 20}};
  gpumem::scope scope{limiting};
  gpumem::fallback_adaptor fallback{scope, gpumem::managed_resource{}};
  gpumem::statistics_adaptor counting{gpumem::any_pool{gpumem::thread_safe_adaptor{fallback}}};
  auto const counts = [&] {
    auto const now = counting.counters();
    EXPECT_EQ(limiting.in_use(), scope.held());
    return live_counts{limiting.in_use(), now.bytes.value, now.bytes.total};
  };
  auto* const p = counting.allocate(stream_, 1000);
  int foreign = 0;
  for (int i = 0; i < 100; ++i) {
    counting.deallocate(stream_, p, 999);
    counting.deallocate(stream_, &foreign, 4096);
    ASSERT_EQ(counts(), (live_counts{1000, 1000, 1000}));
  }
  EXPECT_EQ(test::seen.size(), 200u);
  counting.deallocate(stream_, p, 1000);
  counting.deallocate(stream_, p, 1000);
  EXPECT_EQ(counts(), (live_counts{0, 0, 1000}));
  EXPECT_EQ(counting.counters().allocations, (gpumem::counter{0, 1, 1}));
  EXPECT_EQ(test::seen.size(), 201u);
}

// If the adaptor counted the refused free, its state would end with its handle, and the right free would find no state.
TEST_F(refused_frees, adaptor_outlives_a_refused_free) {
  test::recorded_misuse const recorded;
  auto const pool = gpumem::pool_resource{gpumem::cuda_resource{}};
  void* p = nullptr;
  gpumem::extend::services_handle kept{};
  {
    gpumem::fallback_adaptor subject{gpumem::statistics_adaptor{pool}, gpumem::managed_resource{}};
    p = subject.allocate(stream_, 1000);
    subject.deallocate(stream_, p, 999);
    kept = gpumem::extend::services_of(subject);
  }
  auto const key = gpumem::extend::identify(stream_, gpumem::device{0});
  kept.table->deallocate_keyed(kept.state, &key, p, 1000, 256);
  EXPECT_EQ(pool.statistics().live, 0u);
  EXPECT_EQ(test::seen.size(), 1u);
}

TEST_F(refused_frees, block_of_the_second_resource_is_still_its_own_after_a_refused_free) {
  test::recorded_misuse const recorded;
  gpumem::pool_resource second{gpumem::cuda_resource{}};
  gpumem::fallback_adaptor subject{gpumem::pool_resource{gpumem::cuda_resource{}, {.limit = 1 << 20}}, second};
  auto* const p = subject.allocate(stream_, 4 << 20);
  subject.deallocate(stream_, p, 1000);
  EXPECT_EQ(test::seen.size(), 1u);
  subject.deallocate(stream_, p, 4 << 20);
  EXPECT_EQ(test::seen.size(), 1u);
  EXPECT_EQ(second.statistics().live, 0u);
}

} // namespace
