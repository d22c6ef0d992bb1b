// A fixture for memory pools of the simulated driver.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver.hpp"

inline constexpr std::size_t mib = std::size_t{1} << 20;
inline constexpr std::size_t chunk = 32 * mib; // the minimum that a pool reserves at once

class simulated_pools : public simulated_device {
protected:
  using simulated_device::simulated_device;

  static CUmemPoolProps on_device(int ordinal = 0, std::size_t limit = 0) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    properties.maxSize = limit;
    return properties;
  }

  static CUmemoryPool new_pool(CUmemPoolProps const& properties = on_device()) {
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cu().pool_create(&made, &properties), CUDA_SUCCESS);
    return made;
  }

  /// Makes a pool that keeps freed memory.
  static CUmemoryPool keeping_pool(std::size_t limit = 0) {
    CUmemoryPool const made = new_pool(on_device(0, limit));
    set(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, ~cuuint64_t{0});
    return made;
  }

  template <class Value> static void set(CUmemoryPool pool, CUmemPool_attribute which, Value value) {
    EXPECT_EQ(cu().pool_set(pool, which, &value), CUDA_SUCCESS);
  }

  static std::size_t get(CUmemoryPool pool, CUmemPool_attribute which) {
    cuuint64_t value = 0;
    EXPECT_EQ(cu().pool_get(pool, which, &value), CUDA_SUCCESS);
    return value;
  }
  static std::size_t reserved(CUmemoryPool pool) { return get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }

  /// Returns null if the pool has no memory.
  static char* allocate(CUmemoryPool pool, CUstream on, std::size_t bytes) {
    CUdeviceptr made = 0;
    CUresult const result = cu().allocate_from_pool(&made, bytes, pool, on);
    EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY) << result;
    return result == CUDA_SUCCESS ? reinterpret_cast<char*>(made) : nullptr;
  }
  static CUresult free(char* memory, CUstream on) { return cu().free_async(address(memory), on); }

  static void order(CUstream first, CUstream second) {
    CUevent const e = new_event();
    cu().event_record(e, first);
    cu().stream_wait(second, e, 0);
  }
};
