// Own driver pools and views of other pools: options, statistics, trim, locations, refused calls.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <vector>

#include <cuda.h>

import gpumem;
#include "recorded_misuse.hpp"

namespace {

namespace simulator = gpumem::simulator;
using test::recorded_misuse;
using test::seen;

constexpr std::size_t mib = std::size_t{1024} * 1024;
constexpr std::size_t segment = 32 * mib; // the minimum that the simulated driver reserves

class async_resource : public simulated {
protected:
  void SetUp() override {
    simulated::SetUp();
    simulator::run_until_idle(); // completes the frees of earlier tests
    held_ = device_bytes();
  }
  void TearDown() override {
    simulated::TearDown();
    EXPECT_LE(device_bytes(), held_) << "a pool is left";
  }
  static int policy_of(gpumem::async_resource const& pool, CUmemPool_attribute which) {
    int on = -1;
    EXPECT_EQ(gpumem::driver_api::driver().mem_pool_get_attribute(pool.handle(), which, &on), CUDA_SUCCESS);
    return on;
  }
  std::size_t held_ = 0;
};

TEST_F(async_resource, copies_share_one_pool) {
  static_assert(sizeof(gpumem::async_resource) == 8);
  gpumem::async_resource a, b;
  auto copy = a;
  EXPECT_TRUE(copy == a);
  EXPECT_FALSE(a == b);
  EXPECT_NE(a.handle(), nullptr);
  EXPECT_NE(a.handle(), b.handle());
  EXPECT_EQ(copy.handle(), a.handle());
  gpumem::stream s{gpumem::device{0}};
  void* const p = a.allocate(s, mib);
  copy.deallocate(s, p, mib);
}

TEST_F(async_resource, live_block_keeps_the_pool) {
  gpumem::stream s{gpumem::device{0}};
  std::optional<gpumem::async_resource> pool{std::in_place};
  auto const handle = pool->handle();
  auto const lives = [&] {
    cuuint64_t reserved = 0;
    return gpumem::driver_api::driver().mem_pool_get_attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                                               &reserved) == CUDA_SUCCESS;
  };
  auto block = pool->acquire(s, mib).wait();
  pool.reset();
  simulator::work(s, {simulator::write(block.data(), mib)});
  EXPECT_TRUE(lives());
  block.reset();
  EXPECT_FALSE(lives());
}

TEST_F(async_resource, last_handle_closes_the_pool) {
  recorded_misuse const scope;
  gpumem::stream s{gpumem::device{0}};
  std::optional<gpumem::async_resource> pool{std::in_place};
  auto const services = pool->services();
  auto block = pool->acquire(s, mib).wait();
  pool.reset();
  auto const got = services.table->try_allocate(services.state, s, mib, 256);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().reason, gpumem::outcome::closed);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].what, gpumem::misuse::kind::use_after_close);
}

TEST_F(async_resource, options_reach_the_driver) {
  gpumem::async_resource usual;
  gpumem::async_resource strict{gpumem::device{0},
                                {.release_threshold = 7,
                                 .reuse_after_events = false,
                                 .reuse_completed = false,
                                 .reuse_by_inserted_waits = false,
                                 .exported_as = gpumem::export_handle::file_descriptor,
                                 .hardware_decompression = true}};
  EXPECT_EQ(usual.release_threshold(), ~std::size_t{0});
  EXPECT_EQ(strict.release_threshold(), 7u);
  for (auto const which : {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                           CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    EXPECT_EQ(policy_of(usual, which), 1);
    EXPECT_EQ(policy_of(strict, which), 0);
  }
  EXPECT_EQ(strict.options().exported_as, gpumem::export_handle::file_descriptor);
}

TEST_F(async_resource, initial_size_is_reserved_at_once) {
  gpumem::async_resource pool{gpumem::device{0}, {.initial_size = 3 * segment}};
  EXPECT_EQ(pool.usage(), (gpumem::driver_pool_usage{3 * segment, 3 * segment, 0, 3 * segment}));
  pool.reset_peaks();
  EXPECT_EQ(pool.usage(), (gpumem::driver_pool_usage{3 * segment, 3 * segment, 0, 0}));
  gpumem::stream s{gpumem::device{0}};
  void* const p = pool.allocate(s, 2 * segment);
  EXPECT_EQ(pool.usage().reserved, 3 * segment) << "served from reserved memory";
  EXPECT_EQ(pool.statistics().allocations, 1u);
  pool.deallocate(s, p, 2 * segment);
}

TEST_F(async_resource, limit_is_kept) {
  gpumem::async_resource pool{gpumem::device{0}, {.limit = 4 * mib}};
  gpumem::stream s{gpumem::device{0}};
  EXPECT_EQ(pool.try_allocate(s, 5 * mib).error().reason, gpumem::outcome::too_large);
  EXPECT_EQ(pool.try_allocate(s, 4 * mib, 2 * mib).error().reason, gpumem::outcome::too_large) << "with its alignment";
  void* const p = pool.allocate(s, 3 * mib);
  auto const got = pool.try_allocate(s, 2 * mib);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error(), (gpumem::failure{gpumem::outcome::exhausted, CUDA_ERROR_OUT_OF_MEMORY, 2 * mib}));
  try {
    (void)pool.allocate(s, 2 * mib);
    ADD_FAILURE() << "memory was given";
  } catch (gpumem::out_of_memory const& e) {
    EXPECT_EQ(e.info().requested, 2 * mib);
    EXPECT_EQ(e.info().live, 3 * mib);
    EXPECT_EQ(e.info().reserved, 4 * mib);
    EXPECT_EQ(e.info().limit, 4 * mib);
  }
  pool.deallocate(s, p, 3 * mib);
  void* const q = pool.allocate(s, 4 * mib);
  pool.deallocate(s, q, 4 * mib);
  EXPECT_EQ(pool.statistics().failures, 4u);
}

TEST_F(async_resource, contradicting_options_are_refused) {
  gpumem::device const where{0};
  using gpumem::async_pinned_resource, gpumem::async_managed_resource;
  EXPECT_THROW((gpumem::async_resource{where, {.initial_size = 2, .limit = 1}}), std::invalid_argument);
  EXPECT_THROW((gpumem::async_resource{where, {.initial_size = 2, .release_threshold = 1}}), std::invalid_argument);
  EXPECT_THROW((gpumem::async_resource{where, {.numa_node = 0}}), std::invalid_argument);
  EXPECT_THROW((async_pinned_resource{where, {.numa_node = -2}}), std::invalid_argument);
  EXPECT_THROW((async_pinned_resource{where, {.exported_as = gpumem::export_handle::file_descriptor}}),
               std::invalid_argument);
  EXPECT_THROW((async_managed_resource{where, {.hardware_decompression = true}}), std::invalid_argument);
  EXPECT_THROW((gpumem::async_resource{where, {.exported_as = static_cast<gpumem::export_handle>(9)}}),
               std::invalid_argument);
  EXPECT_THROW(gpumem::async_resource{gpumem::device{2}}, std::invalid_argument);
}

TEST_F(async_resource, unsupported_options_are_reported) {
  try {
    gpumem::async_resource const pool{gpumem::device{1}, {.exported_as = gpumem::export_handle::fabric}};
    ADD_FAILURE() << "a pool was made";
  } catch (gpumem::cuda_error const& e) {
    EXPECT_EQ(static_cast<CUresult>(e.status()), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_NE(std::string{e.what()}.find("device 1 cannot create a driver pool for async_resource"), std::string::npos)
        << e.what();
  }
  simulator::fail_call("cuMemPoolCreate", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THROW(gpumem::async_managed_resource{}, gpumem::cuda_error);
  simulator::fail_call("cuMemPoolCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW(gpumem::async_pinned_resource{}, gpumem::out_of_memory);
  EXPECT_THROW((gpumem::async_pinned_resource{gpumem::device{0}, {.numa_node = 5}}), gpumem::cuda_error);
}

TEST_F(async_resource, pool_is_destroyed_if_its_construction_fails) {
  auto const destroyed = gpumem::driver_api::driver_calls("cuMemPoolDestroy");
  simulator::fail_call("cuMemPoolSetAttribute", 3, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(gpumem::async_resource{}, gpumem::cuda_error);
  simulator::fail_allocation(1);
  EXPECT_THROW((gpumem::async_resource{gpumem::device{0}, {.initial_size = mib}}), gpumem::out_of_memory);
  simulator::fail_call("cuStreamSynchronize", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THROW((gpumem::async_resource{gpumem::device{0}, {.initial_size = mib}}), gpumem::cuda_error);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuMemPoolDestroy"), destroyed + 3);
}

TEST_F(async_resource, trim_keeps_the_requested_bytes) {
  gpumem::async_resource pool;
  gpumem::stream s{gpumem::device{0}};
  void* const p = pool.allocate(s, segment);
  void* const q = pool.allocate(s, segment);
  pool.deallocate(s, p, segment);
  EXPECT_EQ(pool.trim(), 0u) << "the host has not seen the free";
  s.synchronize();
  EXPECT_EQ(pool.trim(2 * segment), 0u);
  EXPECT_EQ(pool.trim(), segment);
  EXPECT_EQ(pool.usage().reserved, segment);
  EXPECT_EQ(gpumem::trim(pool), 0u);
  pool.deallocate(s, q, segment);
}

TEST_F(async_resource, statistics_combine_those_of_the_resource_and_the_driver) {
  gpumem::async_resource pool;
  gpumem::stream s{gpumem::device{0}};
  void* const p = pool.allocate(s, 1000);
  void* const q = pool.allocate(s, 40 * mib);
  auto const both = pool.statistics();
  EXPECT_EQ(both.live, 1000 + 40 * mib);
  EXPECT_EQ(both.allocated, 1024 + 40 * mib);
  EXPECT_EQ(both.reserved, segment + 40 * mib);
  pool.deallocate(s, q, 40 * mib);
  s.synchronize();
  pool.trim();
  auto const one = pool.statistics();
  EXPECT_EQ(one.live, 1000u);
  EXPECT_EQ(one.allocated, 1024u);
  EXPECT_EQ(one.reserved, segment);
  EXPECT_EQ(one.peak_live, 1000 + 40 * mib);
  EXPECT_EQ(one.peak_reserved, segment + 40 * mib);
  EXPECT_EQ(one.frees, 1u);
  EXPECT_EQ(pool.usage().peak_used, 1024 + 40 * mib);
  simulator::fail_call("cuMemPoolGetAttribute", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pool.statistics().live, 1000u) << "its own counts are used instead";
  pool.deallocate(s, p, 1000);
}

TEST_F(async_resource, release_threshold_0_returns_memory) {
  gpumem::async_resource pool{gpumem::device{0}, {.release_threshold = 0}};
  gpumem::stream s{gpumem::device{0}};
  void* const p = pool.allocate(s, mib);
  pool.deallocate(s, p, mib);
  EXPECT_EQ(pool.usage().reserved, segment);
  s.synchronize();
  EXPECT_EQ(pool.usage().reserved, 0u);
}

TEST_F(async_resource, peer_access_can_be_enabled_and_disabled) {
  gpumem::device const home{0}, peer{1};
  gpumem::async_resource pool, open{home, {.peers = {home, peer}}};
  EXPECT_TRUE(pool.allows(home));
  EXPECT_FALSE(pool.allows(peer));
  EXPECT_TRUE(open.allows(peer));
  pool.allow(peer);
  EXPECT_TRUE(pool.allows(peer));
  pool.forbid(peer);
  EXPECT_FALSE(pool.allows(peer));
  EXPECT_THROW(pool.forbid(home), gpumem::cuda_error);
  gpumem::async_pinned_resource pinned{peer};
  EXPECT_TRUE(pinned.allows(peer));
  EXPECT_FALSE(pinned.allows(home));
  EXPECT_TRUE(gpumem::async_managed_resource{peer}.allows(home));
}

TEST_F(async_resource, memory_belongs_to_its_device_whichever_is_current) {
  gpumem::device_guard const scope{gpumem::device{0}};
  gpumem::async_resource pool{gpumem::device{1}};
  gpumem::stream s{gpumem::device{1}}, other{gpumem::device{0}};
  auto const free = gpumem::device{1}.memory().free;
  void* const p = pool.allocate(s, mib);
  void* const q = pool.allocate_sync(mib);
  void* const r = pool.allocate(other, mib); // streams of peer devices may allocate too
  EXPECT_LE(gpumem::device{1}.memory().free, free - mib);
  EXPECT_EQ(pool.device().ordinal(), 1);
  EXPECT_THROW((void)pool.allocate(gpumem::stream_ref{cudaStream_t{}}, mib), std::invalid_argument);
  pool.deallocate(s, p, mib);
  pool.deallocate_sync(q, mib);
  pool.deallocate(other, r, mib);
  EXPECT_EQ(gpumem::device::current().ordinal(), 0);
}

TEST_F(async_resource, misuse_is_reported_and_ignored) {
  recorded_misuse const scope;
  gpumem::async_resource pool, other;
  gpumem::stream s{gpumem::device{0}};
  void* const p = pool.allocate(s, mib);
  void* const q = pool.allocate(s, mib, 4096);
  other.deallocate(s, p, mib);
  pool.deallocate(s, p, mib + 1);
  pool.deallocate(s, p, mib, 16); // an alignment other than the allocation's is no misuse
  pool.deallocate(s, p, mib);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(seen[1].what, gpumem::misuse::kind::wrong_size);
  EXPECT_EQ(seen[2].what, gpumem::misuse::kind::foreign_pointer) << "the driver may have allocated it again";
  pool.deallocate(s, q, mib, 4096);
}

class async_resource_view : public async_resource {};

TEST_F(async_resource_view, view_does_not_change_the_default_pool) {
  CUmemoryPool own = nullptr;
  ASSERT_EQ(gpumem::driver_api::driver().device_get_default_mem_pool(&own, 1), CUDA_SUCCESS);
  gpumem::stream s{gpumem::device{1}};
  void* p = nullptr;
  {
    gpumem::async_resource_view view{gpumem::device{1}};
    EXPECT_EQ(view.handle(), own);
    EXPECT_EQ(view.release_threshold(), 0u);
    p = view.allocate(s, mib);
  }
  gpumem::async_resource_view again{own, gpumem::device{1}};
  EXPECT_TRUE(again == gpumem::async_resource_view{gpumem::device{1}});
  EXPECT_FALSE(again == gpumem::async_resource_view{});
  EXPECT_EQ(again.statistics().live, mib);
  again.deallocate(s, p, mib);
  s.synchronize();
  EXPECT_EQ(again.usage().reserved, 0u) << "the default pool keeps nothing";
  EXPECT_EQ(again.trim(), 0u);
}

TEST_F(async_resource_view, view_allocates_from_the_pool_that_it_names) {
  gpumem::stream s{gpumem::device{0}};
  gpumem::async_resource pool;
  gpumem::async_resource_view view{pool.handle(), gpumem::device{0}};
  void* const p = view.allocate(s, mib);
  EXPECT_EQ(pool.usage().used, mib);
  view.deallocate(s, p, mib);
  s.synchronize(); // the pool's owner does not know of the view's frees
  EXPECT_THROW((gpumem::async_resource_view{nullptr, gpumem::device{0}}), std::invalid_argument);
}

template <class View> class host_view : public async_resource {};
using host_views = testing::Types<gpumem::async_managed_resource_view, gpumem::async_pinned_resource_view>;
TYPED_TEST_SUITE(host_view, host_views);

TYPED_TEST(host_view, host_can_use_memory_of_the_default_pool_at_once) {
  TypeParam const view;
  EXPECT_TRUE(view == (TypeParam{view.handle(), gpumem::device{0}}));
  EXPECT_FALSE(view.handle() == gpumem::async_resource_view{}.handle());
  EXPECT_THROW((TypeParam{nullptr, gpumem::device{0}}), std::invalid_argument);
  auto const threshold = view.release_threshold();
  gpumem::stream s{gpumem::device{0}};
  TypeParam source;
  auto* const p = static_cast<int*>(source.allocate(s, mib));
  p[0] = 7;
  source.deallocate(s, p, mib);
  s.synchronize();
  EXPECT_EQ(view.release_threshold(), threshold);
}

TYPED_TEST(host_view, missing_default_pool_is_reported) {
  simulator::fail_call("cuMemGetDefaultMemPool", 1, CUDA_ERROR_NOT_SUPPORTED);
  try {
    TypeParam const view;
    FAIL() << "a view of no pool was made";
  } catch (gpumem::cuda_error const& e) {
    EXPECT_EQ(e.status(), cudaErrorNotSupported);
    EXPECT_THAT(e.what(), testing::HasSubstr("has no default pool of"));
  }
}

TEST_F(async_resource_view, view_uses_the_current_pool) {
  EXPECT_TRUE(gpumem::async_resource_view::current(gpumem::device{0}) == gpumem::async_resource_view{});
}

} // namespace
