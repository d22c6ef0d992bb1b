// Virtual memory of the simulated device: addresses, handles, mappings, access rights, capacity, and the driver's
// refusals.
// SPDX-License-Identifier: Apache-2.0
#include "support/pages.hpp"

#include <unistd.h>

#include <array>
#include <cstring>

namespace {

using namespace std::chrono_literals;

constexpr std::size_t gib = std::size_t{1} << 30;

class virtual_memory : public simulated_pages {};

TEST_F(virtual_memory, support_is_a_device_attribute_and_can_be_missing) {
  int has = 0;
  auto const attribute = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  ASSERT_EQ(cu().device_attribute(&has, attribute, 0), CUDA_SUCCESS);
  EXPECT_EQ(has, 1);
  simulator::options without = stepped_by_hand();
  without.virtual_memory = false;
  simulator::reset(without);
  ASSERT_EQ(cu().device_attribute(&has, attribute, 0), CUDA_SUCCESS);
  EXPECT_EQ(has, 0);
  CUdeviceptr at = 0;
  EXPECT_EQ(cu().reserve_addresses(&at, page, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
  memory_handle memory = 0;
  auto const properties = on_device();
  EXPECT_EQ(cu().create_memory(&memory, page, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(virtual_memory, needs_no_context) {
  cu().set_current(nullptr);
  char* at = reserve(page);
  lay(at);
  EXPECT_EQ(unmap(at), CUDA_SUCCESS);
  EXPECT_EQ(cu().free_addresses(address(at), page), CUDA_SUCCESS);
  cu().set_current(context_);
}

TEST_F(virtual_memory, reserved_addresses_use_no_memory) {
  char* first = reserve(160 * gib);
  char* second = reserve(160 * gib);
  EXPECT_EQ(address(first) % page, 0u);
  EXPECT_TRUE(second >= first + 160 * gib || second + 160 * gib <= first);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(simulator::report().bytes_reserved, 320 * gib);
  EXPECT_EQ(cu().free_addresses(address(first), 160 * gib), CUDA_SUCCESS);
  EXPECT_EQ(cu().free_addresses(address(first), 160 * gib), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().free_addresses(address(second), 80 * gib), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().free_addresses(address(second), 160 * gib), CUDA_SUCCESS);
}

TEST_F(virtual_memory, option_bounds_the_addresses_that_are_reserved_at_a_time) {
  simulator::options few = stepped_by_hand();
  few.addresses = 40 * gib;
  simulator::reset(few);
  char* first = reserve(30 * gib);
  CUdeviceptr at = 0;
  EXPECT_EQ(cu().reserve_addresses(&at, 10 * gib + page, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  char* second = reserve(10 * gib);
  EXPECT_EQ(cu().reserve_addresses(&at, page, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu().free_addresses(address(first), 30 * gib), CUDA_SUCCESS);
  EXPECT_EQ(cu().free_addresses(address(second), 10 * gib), CUDA_SUCCESS);
}

TEST_F(virtual_memory, invalid_sizes_and_alignments_of_addresses_are_refused) {
  CUdeviceptr at = 0;
  EXPECT_EQ(cu().reserve_addresses(nullptr, page, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().reserve_addresses(&at, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().reserve_addresses(&at, page + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().reserve_addresses(&at, page, 3 * page, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().reserve_addresses(&at, page, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().reserve_addresses(&at, std::size_t{1} << 60, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cu().reserve_addresses(&at, page, 64 * page, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(at % (64 * page), 0u);
}

TEST_F(virtual_memory, handle_uses_device_memory_and_an_alias_uses_none) {
  std::size_t free = 0;
  std::size_t total = 0;
  memory_handle const memory = create(32 * page);
  ASSERT_EQ(cu().memory_info(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, total - 32 * page);
  char* at = reserve(64 * page);
  EXPECT_EQ(map(at, memory, 32 * page), CUDA_SUCCESS);
  EXPECT_EQ(map(at + 32 * page, memory, 32 * page), CUDA_SUCCESS);
  EXPECT_EQ(used(), 32 * page);
  EXPECT_EQ(simulator::report().mappings, 2u);
  EXPECT_EQ(release(memory), CUDA_SUCCESS);
  EXPECT_EQ(unmap(at, 32 * page), CUDA_SUCCESS);
  EXPECT_EQ(used(), 32 * page) << "still mapped";
  EXPECT_EQ(unmap(at + 32 * page, 32 * page), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
}

TEST_F(virtual_memory, shares_the_capacity_with_allocations) {
  simulator::options small = stepped_by_hand();
  small.capacity = 8 * page;
  simulator::reset(small);
  new_memory(4 * page);
  memory_handle const first = create(3 * page);
  memory_handle more = 0;
  auto const properties = on_device();
  EXPECT_EQ(cu().create_memory(&more, 2 * page, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr plain = 0;
  EXPECT_EQ(cu().allocate(&plain, 2 * page), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(release(first), CUDA_SUCCESS);
  EXPECT_EQ(cu().create_memory(&more, 4 * page, &properties, 0), CUDA_SUCCESS);
}

TEST_F(virtual_memory, invalid_properties_of_handles_are_refused) {
  memory_handle memory = 0;
  auto properties = on_device();
  EXPECT_EQ(cu().create_memory(&memory, page / 2, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().create_memory(&memory, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().create_memory(&memory, page, &properties, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().create_memory(&memory, page, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().create_memory(nullptr, page, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  properties.location.id = 7;
  EXPECT_EQ(cu().create_memory(&memory, page, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
  properties = on_device();
  properties.type = CU_MEM_ALLOCATION_TYPE_MANAGED;
  EXPECT_EQ(cu().create_memory(&memory, page, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  properties = on_device();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(cu().create_memory(&memory, page, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  properties = on_device();
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  testing::internal::CaptureStderr();
  EXPECT_EQ(cu().create_memory(&memory, page, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("virtual memory on the host"), std::string::npos);
}

TEST_F(virtual_memory, granularity_is_two_mebibytes) {
  std::size_t bytes = 0;
  auto const properties = on_device();
  for (auto const option : {CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED}) {
    EXPECT_EQ(cu().granularity(&bytes, &properties, option), CUDA_SUCCESS);
    EXPECT_EQ(bytes, page);
  }
  EXPECT_EQ(cu().granularity(&bytes, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(virtual_memory, memory_is_mapped_only_at_reserved_unmapped_addresses) {
  char* at = reserve(4 * page);
  memory_handle const memory = create(2 * page);
  EXPECT_EQ(map(at + 1, memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map(at, memory, page / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map(at, memory, 3 * page), CUDA_ERROR_INVALID_VALUE) << "larger than the memory";
  EXPECT_EQ(cu().map(address(at), page, page, memory, 0), CUDA_ERROR_INVALID_VALUE) << "offsets must be zero";
  EXPECT_EQ(map(at + 3 * page, memory, 2 * page), CUDA_ERROR_INVALID_VALUE) << "beyond the reservation";
  EXPECT_EQ(map(at + page, memory, 2 * page), CUDA_SUCCESS);
  for (std::size_t const over : {0, 1, 2})
    EXPECT_EQ(map(at + over * page, memory, 2 * page), CUDA_ERROR_INVALID_VALUE) << over;
  EXPECT_EQ(cu().free_addresses(address(at), 4 * page), CUDA_ERROR_INVALID_VALUE) << "already mapped";
  EXPECT_EQ(map(at + 3 * page, memory), CUDA_SUCCESS) << "a part of the range";
  int local = 0;
  EXPECT_EQ(cu().map(reinterpret_cast<CUdeviceptr>(&local) / page * page, page, 0, memory, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(simulator::report().mappings, 2u);
}

TEST_F(virtual_memory, only_whole_mappings_are_unmapped) {
  char* at = reserve(8 * page);
  lay(at, 2 * page);
  lay(at + 2 * page, page);
  lay(at + 4 * page, page);
  EXPECT_EQ(unmap(at, page), CUDA_ERROR_INVALID_VALUE) << "a part of a mapping";
  EXPECT_EQ(unmap(at + page, 2 * page), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(unmap(at, 5 * page), CUDA_ERROR_INVALID_VALUE) << "a hole";
  EXPECT_EQ(unmap(at + 6 * page), CUDA_ERROR_INVALID_VALUE) << "nothing there";
  EXPECT_EQ(simulator::report().mappings, 3u);
  EXPECT_EQ(unmap(at, 3 * page), CUDA_SUCCESS) << "two mappings at once";
  EXPECT_EQ(unmap(at + 4 * page), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
  lay(at + page);
}

TEST_F(virtual_memory, access_is_set_for_whole_mappings_and_not_inherited) {
  simulator::options two = stepped_by_hand();
  two.devices = 2;
  simulator::reset(two);
  char* at = reserve(4 * page);
  memory_handle const memory = create(2 * page);
  EXPECT_EQ(allow(at), CUDA_ERROR_INVALID_VALUE) << "nothing is mapped";
  ASSERT_EQ(map(at, memory, 2 * page), CUDA_SUCCESS);
  EXPECT_EQ(allowed(at), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(allow(at), CUDA_ERROR_INVALID_VALUE) << "half a mapping";
  EXPECT_EQ(allow(at, 4 * page), CUDA_ERROR_INVALID_VALUE) << "the rest is not mapped";
  EXPECT_EQ(allow(at, 2 * page, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(allow(at, 2 * page, 0, static_cast<CUmemAccess_flags>(2)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().set_access(address(at), 2 * page, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allow(at, 2 * page), CUDA_SUCCESS);
  EXPECT_EQ(allow(at, 2 * page, 1, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_EQ(allowed(at + page), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(allowed(at, 1), CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_EQ(unmap(at, 2 * page), CUDA_SUCCESS);
  unsigned long long flags = 0;
  CUmemLocation const first{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  EXPECT_EQ(cu().get_access(&flags, &first, address(at)), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(map(at, memory, 2 * page), CUDA_SUCCESS);
  EXPECT_EQ(allowed(at), CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

TEST_F(virtual_memory, handle_is_found_by_an_address) {
  auto properties = on_device();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  memory_handle const memory = create(page, properties);
  char* at = reserve(2 * page);
  ASSERT_EQ(map(at, memory), CUDA_SUCCESS);
  EXPECT_EQ(release(memory), CUDA_SUCCESS);
  memory_handle again = 0;
  EXPECT_EQ(cu().retain_memory(&again, at + page), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu().retain_memory(&again, at + 77), CUDA_SUCCESS);
  EXPECT_EQ(again, memory);
  CUmemAllocationProp told{};
  EXPECT_EQ(cu().memory_properties(&told, again), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(&told, &properties, sizeof told), 0);
  ASSERT_EQ(unmap(at), CUDA_SUCCESS);
  EXPECT_EQ(used(), page) << "the handle is held";
  EXPECT_EQ(release(again), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
}

TEST_F(virtual_memory, use_of_a_released_handle_is_reported) {
  memory_handle const memory = create();
  char* at = reserve(page);
  EXPECT_EQ(release(memory), CUDA_SUCCESS);
  EXPECT_EQ(map(at, memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(only_finding().kind, simulator::finding_kind::dead_memory_handle);
  EXPECT_EQ(map(at, memory + 1), CUDA_ERROR_INVALID_VALUE) << "never a handle";
  EXPECT_EQ(create(), memory) << "handle values are reused at once";
}

TEST_F(virtual_memory, exportable_handle_is_exported) {
  auto properties = on_device();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  memory_handle const open = create(page, properties);
  memory_handle const closed = create();
  int file = -1;
  auto const type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(cu().export_memory(&file, closed, type, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().export_memory(&file, open, type, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu().export_memory(&file, open, type, 0), CUDA_SUCCESS);
  auto const descriptor = [](int of) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(of)); };
  memory_handle imported = 0;
  EXPECT_EQ(cu().import_memory(&imported, descriptor(file), CU_MEM_HANDLE_TYPE_NONE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().import_memory(&imported, descriptor(-1), type), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().import_memory(&imported, descriptor(2), type), CUDA_ERROR_INVALID_VALUE) << "no exported memory";
  ASSERT_EQ(cu().import_memory(&imported, descriptor(file), type), CUDA_SUCCESS);
  EXPECT_EQ(imported, open) << "the same memory";
  EXPECT_EQ(::close(file), 0);
  EXPECT_EQ(cu().release_memory(imported), CUDA_SUCCESS);
  EXPECT_EQ(cu().release_memory(open), CUDA_SUCCESS);
}

TEST_F(virtual_memory, aliases_show_the_same_bytes) {
  CUstream const s = new_stream();
  char* at = reserve(4 * page);
  lay_twice(at, at + 2 * page);
  std::array<int, 64> in{1, 2, 3};
  std::array<int, 64> out{};
  EXPECT_EQ(cu().to_device_async(address(at + 256), in.data(), sizeof in, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().to_host_async(out.data(), address(at + 2 * page + 256), sizeof out, s), CUDA_SUCCESS);
  EXPECT_EQ(in, out);
  EXPECT_EQ(cu().fill_async(address(at + 2 * page), 7, 8, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(at[5], 7);
  EXPECT_EQ(unmap(at), CUDA_SUCCESS);
  EXPECT_EQ(at[5], 0) << "nothing is there";
  EXPECT_EQ((at + 2 * page)[5], 7);
}

TEST_F(virtual_memory, copy_can_span_mappings) {
  CUstream const s = new_stream();
  char* at = reserve(4 * page);
  lay(at);
  lay(at + page);
  EXPECT_EQ(cu().fill_async(address(at), 9, 2 * page, s), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(at[page - 1], 9);
  EXPECT_EQ(at[2 * page - 1], 9);
}

TEST_F(virtual_memory, new_memory_does_not_keep_old_bytes) {
  char* at = reserve(page);
  lay(at);
  at[100] = 5;
  EXPECT_EQ(unmap(at), CUDA_SUCCESS);
  lay(at);
  EXPECT_EQ(at[100], 0);
}

TEST_F(virtual_memory, pointer_attributes_describe_it) {
  char* at = reserve(4 * page);
  lay(at + page, 2 * page);
  auto const ask = [](auto value, CUpointer_attribute which, char* pointer) {
    EXPECT_EQ(cu().pointer_attribute(static_cast<void*>(&value), which, address(pointer)), CUDA_SUCCESS);
    return value;
  };
  EXPECT_EQ(ask(0u, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + page + 5), unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(ask(7, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at + page), 0);
  EXPECT_EQ(ask(context_, CU_POINTER_ATTRIBUTE_CONTEXT, at + page), nullptr);
  EXPECT_EQ(ask(CUdeviceptr{0}, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 2 * page), address(at));
  EXPECT_EQ(ask(std::size_t{0}, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at), 4 * page);
  EXPECT_EQ(ask(CUdeviceptr{0}, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at + 2 * page), address(at + page));
  EXPECT_EQ(ask(std::size_t{0}, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at + 2 * page), 2 * page);
  EXPECT_TRUE(ask(false, CU_POINTER_ATTRIBUTE_MAPPED, at + page));
  EXPECT_FALSE(ask(true, CU_POINTER_ATTRIBUTE_MAPPED, at));
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cu().address_range(&base, &bytes, address(at + 2 * page)), CUDA_SUCCESS);
  EXPECT_EQ(base, address(at + page));
  EXPECT_EQ(bytes, 2 * page);
  EXPECT_EQ(cu().address_range(&base, &bytes, address(at)), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cu().free(address(at + page)), CUDA_ERROR_INVALID_VALUE) << "it was not allocated";
}

TEST_F(virtual_memory, calls_that_fail_on_demand_change_nothing) {
  char* at = reserve(2 * page);
  memory_handle memory = 0;
  auto const properties = on_device();
  simulator::fail_allocation(1);
  EXPECT_EQ(cu().create_memory(&memory, page, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  simulator::fail_call("cuMemCreate", 1, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cu().create_memory(&memory, page, &properties, 0), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(used(), 0u);
  memory = create();
  simulator::fail_call("cuMemMap", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(map(at, memory), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(map(at, memory), CUDA_SUCCESS);
  simulator::fail_call("cuMemSetAccess", 2, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allow(at), CUDA_SUCCESS);
  EXPECT_EQ(allow(at), CUDA_ERROR_OUT_OF_MEMORY);
  simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(unmap(at), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(simulator::report().mappings, 1u);
}

TEST_F(virtual_memory, each_failure_counts_all_calls) {
  char* const at = reserve(page);
  map(at, create());
  for (unsigned const nth : {1u, 2u, 4u, 4u, 0u}) simulator::fail_call("cuMemSetAccess", nth, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allow(at), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allow(at), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allow(at), CUDA_SUCCESS);
  EXPECT_EQ(allow(at), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allow(at), CUDA_SUCCESS);
}

TEST_F(virtual_memory, equal_calls_give_equal_offsets) {
  char* first = reserve(64 * page);
  char* second = reserve(2 * page);
  lay(first);
  first[0] = 1;
  simulator::reset(stepped_by_hand());
  EXPECT_EQ(simulator::report().mappings, 0u);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(reserve(64 * page), first);
  EXPECT_EQ(reserve(2 * page), second);
  lay(first);
  EXPECT_EQ(first[0], 0);
}

} // namespace
