// Memory of the simulated device: capacity, copies, fills, pointer attributes.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <array>
#include <cstring>
#include <numeric>

namespace {

using namespace std::chrono_literals;

class device_memory : public simulated_device {};

constexpr std::size_t gib = std::size_t{1} << 30;

TEST_F(device_memory, allocations_of_80_gib_use_no_host_memory) {
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(cu().memory_info(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 80 * gib);
  char* big = new_memory(79 * gib);
  ASSERT_EQ(cu().memory_info(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, gib);
  CUdeviceptr more = 0;
  EXPECT_EQ(cu().allocate(&more, 2 * gib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu().allocate(&more, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().allocate(&more, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  big[78 * gib] = 7;
  EXPECT_EQ(cu().free(address(big)), CUDA_SUCCESS);
  EXPECT_EQ(new_memory(79 * gib)[78 * gib], 0);
}

TEST_F(device_memory, equal_calls_give_equal_offsets) {
  char* first = new_memory(1 << 20);
  char* second = new_memory(4 << 20);
  auto const distance = second - first;
  simulator::reset(stepped_by_hand());
  EXPECT_EQ(new_memory(1 << 20), first);
  EXPECT_EQ(new_memory(4 << 20) - first, distance);
}

TEST_F(device_memory, free_waits_for_the_device) {
  CUstream const s = new_stream();
  bool ran = false;
  char* memory = new_memory(64);
  simulator::work(s, {simulator::write(memory, 64)}, 1us, [&] { ran = true; });
  EXPECT_EQ(cu().free(address(memory)), CUDA_SUCCESS);
  EXPECT_TRUE(ran);
  EXPECT_EQ(simulator::report().implicit_synchronizations, 1u);
  EXPECT_EQ(cu().free(address(memory)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(device_memory, copies_run_in_stream_order) {
  CUstream const s = new_stream();
  std::array<int, 256> in;
  std::array<int, 256> out{};
  std::iota(in.begin(), in.end(), 1);
  char* a = new_memory(sizeof in);
  char* b = new_memory(sizeof in);
  cu().to_device_async(address(a), in.data(), sizeof in, s);
  in.fill(0); // pageable memory was read during the call
  cu().copy_async(address(b), address(a), sizeof in, s);
  cu().fill_async(address(b), 0xff, 4, s);
  EXPECT_EQ(cu().to_host_async(out.data(), address(b), sizeof out, s), CUDA_SUCCESS);
  EXPECT_EQ(out[0], -1);
  EXPECT_EQ(out[255], 256);
}

TEST_F(device_memory, copies_to_pinned_memory_are_asynchronous) {
  CUstream const s = new_stream();
  void* pinned = nullptr;
  ASSERT_EQ(cu().allocate_host(&pinned, 64), CUDA_SUCCESS);
  char* memory = new_memory(64);
  cu().fill32_async(address(memory), 42, 16, s);
  cu().to_host_async(pinned, address(memory), 64, s);
  EXPECT_EQ(static_cast<int*>(pinned)[3], 0);
  cu().stream_synchronize(s);
  EXPECT_EQ(static_cast<int*>(pinned)[3], 42);
  EXPECT_EQ(cu().free_host(pinned), CUDA_SUCCESS);
}

TEST_F(device_memory, fills_of_memory_that_the_device_cannot_access_are_refused) {
  std::array<char, 64> own{};
  EXPECT_EQ(cu().fill_async(address(own.data()), 1, own.size(), new_stream()), CUDA_ERROR_INVALID_VALUE);
}

// Devices that can access all memory of the host.
class pageable_memory : public simulated_device {
protected:
  pageable_memory()
      : simulated_device([] {
          auto how = stepped_by_hand();
          how.pageable_memory = true;
          return how;
        }()) {}
};

TEST_F(pageable_memory, copies_and_fills_are_in_stream_order) {
  CUstream const s = new_stream();
  std::array<int, 16> in{}, out{};
  char* memory = new_memory(sizeof in);
  EXPECT_EQ(cu().fill32_async(address(in.data()), 42, 16, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().to_device_async(address(memory), in.data(), sizeof in, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().to_host_async(out.data(), address(memory), sizeof out, s), CUDA_SUCCESS);
  EXPECT_EQ(in[3], 0);
  EXPECT_EQ(out[3], 0) << "the copy waited";
  cu().stream_synchronize(s);
  EXPECT_EQ(in[3], 42);
  EXPECT_EQ(out[3], 42);
}

TEST_F(pageable_memory, unordered_work_on_it_is_found) {
  std::array<char, 64> own{};
  CUstream const a = new_stream();
  simulator::work(a, {simulator::write(own.data(), own.size())}, 1us);
  simulator::work(new_stream(), {simulator::read(own.data(), own.size())}, 1us);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, simulator::finding_kind::unordered_access);
  EXPECT_EQ(found.earlier.stream, id_of(a));
}

TEST_F(device_memory, synchronous_copies_wait_unless_both_sides_are_on_the_device) {
  char* a = new_memory(64);
  char* b = new_memory(64);
  int value = 9;
  EXPECT_EQ(cu().to_device(address(a), &value, sizeof value), CUDA_SUCCESS);
  EXPECT_EQ(simulator::report().operations_pending, 0u);
  EXPECT_EQ(cu().copy(address(b), address(a), sizeof value), CUDA_SUCCESS);
  EXPECT_EQ(simulator::report().operations_pending, 1u);
  int back = 0;
  EXPECT_EQ(cu().to_host(&back, address(b), sizeof back), CUDA_SUCCESS);
  EXPECT_EQ(back, 9);
}

TEST_F(device_memory, pointer_attributes_describe_it) {
  char* memory = new_memory(1000);
  void* pinned = nullptr;
  ASSERT_EQ(cu().allocate_host(&pinned, 64), CUDA_SUCCESS);
  unsigned type = 0;
  EXPECT_EQ(cu().pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(memory + 5)), CUDA_SUCCESS);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(cu().pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(pinned)), CUDA_SUCCESS);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_HOST});
  int local = 0;
  EXPECT_EQ(cu().pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(&local)), CUDA_ERROR_INVALID_VALUE);
  int ordinal = 7;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* places[] = {&type, &ordinal};
  EXPECT_EQ(cu().pointer_attributes(2, which, places, address(&local)), CUDA_SUCCESS);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, -2);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cu().address_range(&base, &bytes, address(memory + 999)), CUDA_SUCCESS);
  EXPECT_EQ(base, address(memory));
  EXPECT_EQ(bytes, 1000u);
  EXPECT_EQ(cu().address_range(&base, &bytes, address(memory + 1000)), CUDA_ERROR_NOT_FOUND);
}

TEST_F(device_memory, host_memory_can_be_registered_once) {
  std::array<char, 4096> own{};
  EXPECT_EQ(cu().register_host(own.data(), own.size(), 0), CUDA_SUCCESS);
  EXPECT_EQ(cu().register_host(own.data(), own.size(), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cu().unregister_host(own.data()), CUDA_SUCCESS);
  EXPECT_EQ(cu().unregister_host(own.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(device_memory, managed_memory_is_used_by_host_and_device) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cu().allocate_managed(&memory, 64, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  bool managed = false;
  EXPECT_EQ(cu().pointer_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory), CUDA_SUCCESS);
  EXPECT_TRUE(managed);
  EXPECT_EQ(cu().free(memory), CUDA_SUCCESS);
}

TEST_F(device_memory, memory_is_counted_by_device) {
  simulator::options two = stepped_by_hand();
  two.devices = 2;
  two.capacity = gib;
  simulator::reset(two);
  CUcontext other = nullptr;
  ASSERT_EQ(cu().retain(&other, 1), CUDA_SUCCESS);
  new_memory(gib);
  CUdeviceptr more = 0;
  EXPECT_EQ(cu().allocate(&more, gib), CUDA_ERROR_OUT_OF_MEMORY);
  cu().set_current(other);
  EXPECT_EQ(cu().allocate(&more, gib), CUDA_SUCCESS);
  int ordinal = 0;
  EXPECT_EQ(cu().pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, more), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 1);
  cu().release(1);
}

TEST_F(device_memory, pointer_attributes_of_the_header_have_answers) {
  CUstream const stream = new_stream();
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cu().allocate_async(&pooled, 1 << 20, stream), CUDA_SUCCESS);
  for (CUdeviceptr const memory : {reinterpret_cast<CUdeviceptr>(new_memory(1000)), pooled}) {
    for (int i = CU_POINTER_ATTRIBUTE_CONTEXT; i <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE; ++i) {
      alignas(16) char answer[16];
      bool const simulated = i != CU_POINTER_ATTRIBUTE_P2P_TOKENS; // this one says so on stderr
      EXPECT_EQ(cu().pointer_attribute(answer, static_cast<CUpointer_attribute>(i), memory),
                simulated ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED)
          << "attribute " << i;
    }
    bool capable = true;
    EXPECT_EQ(cu().pointer_attribute(&capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, memory), CUDA_SUCCESS);
    EXPECT_FALSE(capable);
    EXPECT_EQ(cu().pointer_attribute(&capable, static_cast<CUpointer_attribute>(1000), memory),
              CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(cu().free_async(pooled, stream), CUDA_SUCCESS);
}

} // namespace
