// A fixture for virtual memory of the simulated driver.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver.hpp"

using memory_handle = CUmemGenericAllocationHandle;

inline constexpr std::size_t page = std::size_t{2} << 20;

class simulated_pages : public simulated_device {
protected:
  using simulated_device::simulated_device;

  static CUmemAllocationProp on_device(int ordinal = 0) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    return properties;
  }

  static char* reserve(std::size_t bytes) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cu().reserve_addresses(&made, bytes, 0, 0, 0), CUDA_SUCCESS);
    return reinterpret_cast<char*>(made);
  }

  static memory_handle create(std::size_t bytes = page, CUmemAllocationProp const& properties = on_device()) {
    memory_handle made = 0;
    EXPECT_EQ(cu().create_memory(&made, bytes, &properties, 0), CUDA_SUCCESS);
    return made;
  }

  static CUresult map(char* at, memory_handle memory, std::size_t bytes = page) {
    return cu().map(address(at), bytes, 0, memory, 0);
  }
  static CUresult unmap(char* at, std::size_t bytes = page) { return cu().unmap(address(at), bytes); }
  static CUresult release(memory_handle memory) { return cu().release_memory(memory); }

  static CUresult allow(char* at, std::size_t bytes = page, int ordinal = 0,
                        CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    CUmemAccessDesc const wish{{CU_MEM_LOCATION_TYPE_DEVICE, ordinal}, flags};
    return cu().set_access(address(at), bytes, &wish, 1);
  }

  static unsigned long long allowed(char* at, int ordinal = 0) {
    unsigned long long flags = 99;
    CUmemLocation const location{CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    EXPECT_EQ(cu().get_access(&flags, &location, address(at)), CUDA_SUCCESS);
    return flags;
  }

  /// Maps new memory at an address, for device 0. The handle is released at once, so the memory is freed with the
  /// mapping.
  static void lay(char* at, std::size_t bytes = page) {
    memory_handle const memory = create(bytes);
    EXPECT_EQ(map(at, memory, bytes), CUDA_SUCCESS);
    EXPECT_EQ(allow(at, bytes), CUDA_SUCCESS);
    EXPECT_EQ(release(memory), CUDA_SUCCESS);
  }

  /// Maps one page at two addresses.
  static void lay_twice(char* at, char* alias) {
    memory_handle const memory = create();
    for (char* each : {at, alias}) {
      EXPECT_EQ(map(each, memory), CUDA_SUCCESS);
      EXPECT_EQ(allow(each), CUDA_SUCCESS);
    }
    EXPECT_EQ(release(memory), CUDA_SUCCESS);
  }

  static void order(CUstream first, CUstream second) {
    CUevent const e = new_event();
    cu().event_record(e, first);
    cu().stream_wait(second, e, 0);
  }

  static std::size_t used() { return simulator::report().bytes_allocated; }
};
