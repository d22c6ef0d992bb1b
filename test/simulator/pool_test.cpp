// Memory pools of the simulated driver: creation, contents, attributes and locations.
// SPDX-License-Identifier: Apache-2.0
#include "support/pools.hpp"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;

class memory_pool : public simulated_pools {};

TEST_F(memory_pool, pool_grows_by_chunks_and_counts_used_bytes) {
  CUmemoryPool const pool = keeping_pool();
  CUstream const s = new_stream();
  EXPECT_EQ(reserved(pool), 0u);
  char* a = allocate(pool, s, 1000);
  char* b = allocate(pool, s, 40 * mib);
  EXPECT_EQ(reserved(pool), chunk + 40 * mib);
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1024 + 40 * mib);
  EXPECT_EQ(simulator::report().bytes_allocated, chunk + 40 * mib);
  EXPECT_EQ(free(b, s), CUDA_SUCCESS);
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1024u);
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1024 + 40 * mib);
  set<cuuint64_t>(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1024u);
  cuuint64_t one = 1;
  EXPECT_EQ(cu().pool_set(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &one), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().pool_set(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &one), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(free(a, s), CUDA_SUCCESS);
}

TEST_F(memory_pool, attributes_have_the_defaults_of_the_driver) {
  CUmemoryPool const pool = new_pool();
  EXPECT_EQ(get(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0u);
  for (auto const policy : {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    int on = 0;
    EXPECT_EQ(cu().pool_get(pool, policy, &on), CUDA_SUCCESS);
    EXPECT_EQ(on, 1);
    set(pool, policy, 0);
    EXPECT_EQ(cu().pool_get(pool, policy, &on), CUDA_SUCCESS);
    EXPECT_EQ(on, 0);
  }
}

TEST_F(memory_pool, limits_of_pool_and_device_are_kept) {
  CUmemoryPool const small = keeping_pool(4 * mib);
  CUstream const s = new_stream();
  char* a = allocate(small, s, 3 * mib);
  EXPECT_NE(a, nullptr);
  EXPECT_EQ(reserved(small), 4 * mib);
  EXPECT_EQ(allocate(small, s, 2 * mib), nullptr);
  char* b = allocate(small, s, mib);
  EXPECT_NE(b, nullptr);
  EXPECT_EQ(allocate(small, s, 512), nullptr);
  EXPECT_EQ(allocate(keeping_pool(), s, std::size_t{81} << 30), nullptr);
  EXPECT_EQ(allocate(keeping_pool(), s, ~std::size_t{0}), nullptr);
  EXPECT_EQ(free(a, s), CUDA_SUCCESS);
  EXPECT_EQ(free(b, s), CUDA_SUCCESS);
  EXPECT_EQ(allocate(small, s, 4 * mib), a) << "neighbours were not coalesced";
}

TEST_F(memory_pool, host_wait_releases_memory_beyond_the_threshold) {
  CUmemoryPool const pool = new_pool();
  CUstream const s = new_stream();
  char* a = allocate(pool, s, chunk);
  char* b = allocate(pool, s, chunk);
  EXPECT_EQ(free(a, s), CUDA_SUCCESS);
  simulator::run_until_idle();
  EXPECT_EQ(reserved(pool), 2 * chunk) << "the host has not waited";
  EXPECT_EQ(cu().stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(reserved(pool), chunk);
  set<cuuint64_t>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, chunk);
  EXPECT_EQ(free(b, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().context_synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(reserved(pool), chunk);
  set<cuuint64_t>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
  CUevent const e = new_event();
  cu().event_record(e, s);
  EXPECT_EQ(cu().event_synchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(reserved(pool), 0u);
}

TEST_F(memory_pool, trim_returns_memory_that_the_host_has_seen_freed) {
  CUmemoryPool const pool = keeping_pool();
  CUstream const s = new_stream();
  char* a = allocate(pool, s, chunk);
  char* b = allocate(pool, s, chunk);
  char* c = allocate(pool, s, chunk);
  EXPECT_EQ(free(a, s), CUDA_SUCCESS);
  EXPECT_EQ(free(b, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().pool_trim(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(reserved(pool), 3 * chunk);
  EXPECT_EQ(cu().stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(cu().pool_trim(pool, 2 * chunk), CUDA_SUCCESS);
  EXPECT_EQ(reserved(pool), 2 * chunk);
  EXPECT_EQ(cu().pool_trim(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(reserved(pool), chunk);
  EXPECT_EQ(free(c, s), CUDA_SUCCESS);
}

TEST_F(memory_pool, destroyed_pool_lives_until_its_blocks_are_freed) {
  CUmemoryPool const pool = keeping_pool();
  CUstream const s = new_stream();
  char* a = allocate(pool, s, mib);
  EXPECT_EQ(cu().pool_destroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(cu().pool_destroy(pool), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr more = 0;
  EXPECT_EQ(cu().allocate_from_pool(&more, mib, pool, s), CUDA_ERROR_INVALID_VALUE);
  simulator::work(s, {simulator::write(a, mib)}, 1us);
  EXPECT_EQ(free(a, s), CUDA_SUCCESS);
  EXPECT_EQ(simulator::report().bytes_allocated, chunk);
  simulator::run_until_idle();
  EXPECT_EQ(simulator::report().bytes_allocated, 0u);
}

TEST_F(memory_pool, destruction_before_its_frees_are_complete_is_found) {
  CUstream const s = new_stream();
  CUstream const other = new_stream();
  CUevent const before = new_event();
  CUevent const after = new_event();
  CUmemoryPool pool = nullptr;
  struct way {
    char const* name;
    bool completes; // CUDA demands no more
    bool waits;     // the host waits for the free
    std::function<void()> wait;
  };
  way const ways[] = {
      {"none", false, false, [] {}},
      {"all work has run", true, false, [] { simulator::run_until_idle(); }},
      {"queries and a trim", true, false,
       [&] {
         simulator::run_until_idle();
         EXPECT_EQ(cu().stream_query(s), CUDA_SUCCESS);
         EXPECT_EQ(cu().event_query(after), CUDA_SUCCESS);
         EXPECT_EQ(cu().pool_trim(pool, 0), CUDA_SUCCESS);
       }},
      {"event before the free", false, false, [&] { EXPECT_EQ(cu().event_synchronize(before), CUDA_SUCCESS); }},
      {"another stream", true, false,
       [&] {
         order(s, other);
         EXPECT_EQ(free(allocate(pool, other, mib), other), CUDA_SUCCESS);
         EXPECT_EQ(cu().stream_synchronize(other), CUDA_SUCCESS);
       }},
      {"stream", true, true, [&] { EXPECT_EQ(cu().stream_synchronize(s), CUDA_SUCCESS); }},
      {"event after the free", true, true, [&] { EXPECT_EQ(cu().event_synchronize(after), CUDA_SUCCESS); }},
      {"event after a query", true, true,
       [&] {
         simulator::run_until_idle();
         EXPECT_EQ(cu().event_query(after), CUDA_SUCCESS);
         EXPECT_EQ(cu().event_synchronize(after), CUDA_SUCCESS);
       }},
      {"context", true, true, [] { EXPECT_EQ(cu().context_synchronize(), CUDA_SUCCESS); }},
  };
  auto const destroy_after = [&](way const& how) {
    pool = keeping_pool();
    char* a = allocate(pool, s, mib);
    simulator::work(s, {simulator::write(a, mib)}, 50us);
    EXPECT_EQ(cu().event_record(before, s), CUDA_SUCCESS);
    EXPECT_EQ(free(a, s), CUDA_SUCCESS);
    EXPECT_EQ(cu().event_record(after, s), CUDA_SUCCESS);
    how.wait();
    EXPECT_EQ(cu().pool_destroy(pool), CUDA_SUCCESS);
  };
  for (bool const strict : {false, true}) {
    simulator::options how = stepped_by_hand();
    how.strict_pool_destroy = strict;
    how.keep_objects = true;
    simulator::reset(how);
    for (way const& each : ways) {
      SCOPED_TRACE(std::string(each.name) + (strict ? ", strict" : ""));
      destroy_after(each);
      if (strict ? each.waits : each.completes) continue;
      EXPECT_EQ(only_finding().kind, simulator::finding_kind::early_pool_destroy);
    }
  }
}

TEST_F(memory_pool, context_wait_covers_the_frees_of_a_destroyed_stream) {
  CUstream const s = new_stream();
  CUmemoryPool const pool = keeping_pool();
  EXPECT_EQ(free(allocate(pool, s, mib), s), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_destroy(s), CUDA_SUCCESS);
  EXPECT_EQ(cu().context_synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cu().pool_destroy(pool), CUDA_SUCCESS);
}

TEST_F(memory_pool, current_pool_is_the_default_until_another_is_set) {
  CUmemoryPool first = nullptr;
  CUmemoryPool now = nullptr;
  ASSERT_EQ(cu().default_pool(&first, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu().device_pool(&now, 0), CUDA_SUCCESS);
  EXPECT_EQ(now, first);
  EXPECT_EQ(cu().pool_destroy(first), CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool const own = keeping_pool();
  EXPECT_EQ(cu().set_device_pool(0, own), CUDA_SUCCESS);
  EXPECT_EQ(cu().default_pool(&now, 0), CUDA_SUCCESS);
  EXPECT_EQ(now, first);
  CUstream const s = new_stream();
  CUdeviceptr memory = 0;
  ASSERT_EQ(cu().allocate_async(&memory, mib, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().pointer_attribute(&now, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory), CUDA_SUCCESS);
  EXPECT_EQ(now, own);
  EXPECT_EQ(cu().free_async(memory, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(cu().pool_destroy(own), CUDA_SUCCESS);
  EXPECT_EQ(cu().device_pool(&now, 0), CUDA_SUCCESS);
  EXPECT_EQ(now, first);
}

TEST_F(memory_pool, pools_of_host_and_managed_memory_exist) {
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  CUmemLocation nowhere{CU_MEM_LOCATION_TYPE_NONE, 0};
  CUmemoryPool pinned = nullptr;
  CUmemoryPool managed = nullptr;
  ASSERT_EQ(cu().default_pool_at(&pinned, &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
  ASSERT_EQ(cu().default_pool_at(&managed, &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED), CUDA_SUCCESS);
  EXPECT_EQ(cu().default_pool_at(&pinned, &nowhere, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_INVALID_VALUE);
  CUstream const s = new_stream();
  char* a = allocate(pinned, s, 64);
  char* b = allocate(managed, s, 64);
  unsigned type = 0;
  EXPECT_EQ(cu().pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(a)), CUDA_SUCCESS);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_HOST});
  bool is_managed = false;
  EXPECT_EQ(cu().pointer_attribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address(b)), CUDA_SUCCESS);
  EXPECT_TRUE(is_managed);
  EXPECT_EQ(simulator::report().bytes_allocated, 0u) << "no memory of the device";
  EXPECT_EQ(cu().free_host(a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(free(a, s), CUDA_SUCCESS);
  EXPECT_EQ(free(b, s), CUDA_SUCCESS);
  CUmemoryPool now = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = host;
  CUmemoryPool const own = new_pool(properties);
  EXPECT_EQ(cu().set_pool_at(&nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED, own), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().set_pool_at(&host, CU_MEM_ALLOCATION_TYPE_PINNED, own), CUDA_SUCCESS);
  EXPECT_EQ(cu().pool_at(&now, &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
  EXPECT_EQ(now, own);
}

TEST_F(memory_pool, invalid_properties_are_refused) {
  auto const refusal = [](CUmemPoolProps properties) {
    CUmemoryPool made = nullptr;
    return cu().pool_create(&made, &properties);
  };
  CUmemPoolProps of = on_device(7);
  EXPECT_EQ(refusal(of), CUDA_ERROR_INVALID_DEVICE);
  of = on_device();
  of.reserved[3] = 1;
  EXPECT_EQ(refusal(of), CUDA_ERROR_INVALID_VALUE);
  of = on_device();
  of.usage = 4;
  EXPECT_EQ(refusal(of), CUDA_ERROR_INVALID_VALUE);
  of = on_device();
  of.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(refusal(of), CUDA_ERROR_NOT_SUPPORTED);
  of.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  EXPECT_EQ(refusal(of), CUDA_ERROR_INVALID_VALUE);
  of.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  of.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
  EXPECT_EQ(refusal(of), CUDA_ERROR_INVALID_VALUE);
  of.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 9};
  EXPECT_EQ(refusal(of), CUDA_ERROR_INVALID_VALUE);
  of.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(refusal(of), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(memory_pool, only_allowed_devices_have_access) {
  simulator::options two = stepped_by_hand();
  two.devices = 2;
  simulator::reset(two);
  CUmemoryPool const pool = new_pool();
  CUmemLocation peer{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  CUmemLocation home{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  auto const access = [&](CUmemLocation at) {
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    EXPECT_EQ(cu().pool_get_access(&flags, pool, &at), CUDA_SUCCESS);
    return flags;
  };
  auto const give = [&](CUmemLocation at, CUmemAccess_flags flags) {
    CUmemAccessDesc const wish{at, flags};
    return cu().pool_set_access(pool, &wish, 1);
  };
  EXPECT_EQ(access(home), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(access(peer), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(give(peer, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(access(peer), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(give(peer, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  EXPECT_EQ(access(peer), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(give(home, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(give({CU_MEM_LOCATION_TYPE_DEVICE, 2}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_DEVICE);
  int can = 0;
  EXPECT_EQ(cu().can_access_peer(&can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cu().can_access_peer(&can, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
  CUcontext other = nullptr;
  ASSERT_EQ(cu().retain(&other, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu().disable_peer(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_EQ(cu().enable_peer(other, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu().enable_peer(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(cu().disable_peer(other), CUDA_SUCCESS);
  cu().release(1);
}

TEST_F(memory_pool, pointer_attributes_describe_its_blocks) {
  CUmemoryPool const pool = keeping_pool();
  CUstream const s = new_stream();
  char* a = allocate(pool, s, 1000);
  char* b = allocate(pool, s, 1000);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cu().address_range(&base, &bytes, address(b + 7)), CUDA_SUCCESS);
  EXPECT_EQ(base, address(b));
  EXPECT_EQ(bytes, 1000u);
  EXPECT_EQ(free(b, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().address_range(&base, &bytes, address(b)), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(free(a, s), CUDA_SUCCESS);
}

TEST_F(memory_pool, injected_failures_apply_and_captures_are_refused) {
  CUmemoryPool const pool = keeping_pool();
  CUstream const s = new_stream();
  CUdeviceptr memory = 0;
  simulator::fail_allocation(1);
  EXPECT_EQ(cu().allocate_from_pool(&memory, mib, pool, s), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu().allocate_from_pool(&memory, 0, pool, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().begin_capture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cu().allocate_from_pool(&memory, mib, pool, s), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("in a capture"), std::string::npos);
  CUgraph graph = nullptr;
  EXPECT_EQ(cu().end_capture(s, &graph), CUDA_SUCCESS);
  EXPECT_EQ(reserved(pool), 0u);
}

} // namespace
