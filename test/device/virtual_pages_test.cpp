// Virtual pages on a real device: what kernels wrote is still there after a page has moved, and all memory is returned.
// The last test compares the simulated driver's refusals with the real driver's.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <cuda.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class virtual_pages_on_device : public device_test {
protected:
  void SetUp() override {
    device_test::SetUp();
    if (!IsSkipped() && !extend::virtual_pages::supported(device{0}))
      GTEST_SKIP() << "the device has no virtual memory";
  }

  static std::byte* at(extend::virtual_pages const& pages, std::size_t offset) {
    return static_cast<std::byte*>(pages.base()) + offset;
  }
  static std::size_t free_bytes() { return device{0}.memory().free; }

  void write(stream& on, void* block, std::size_t bytes, std::uint64_t value) {
    stamp::write(on.get(), block, bytes, value);
  }
  void check(stream& on, void const* block, std::size_t bytes, std::uint64_t value) {
    stamp::check(on.get(), block, bytes, value, wrong_);
  }
};

TEST_F(virtual_pages_on_device, kernels_use_adjacent_pages_and_their_memory_is_returned) {
  stream on{device{0}};
  on.synchronize();
  auto const before = free_bytes();
  {
    extend::virtual_pages pages{device{0}};
    EXPECT_EQ(pages.granularity(), 2 * mib);
    EXPECT_GE(pages.address_space(), 8 * device{0}.memory().total);
    ASSERT_TRUE(pages.map(0, 512 * mib));
    ASSERT_TRUE(pages.map(512 * mib, 512 * mib, 512 * mib));
    EXPECT_LE(free_bytes(), before - 1024 * mib);
    write(on, pages.base(), 1024 * mib, 1);
    check(on, pages.base(), 1024 * mib, 1);
    on.synchronize();
    ASSERT_TRUE(pages.unmap(512 * mib, 512 * mib));
    EXPECT_GE(free_bytes(), before - 514 * mib);
  }
  EXPECT_GE(free_bytes(), before - 2 * mib);
}

TEST_F(virtual_pages_on_device, alias_shows_what_the_stream_wrote_before) {
  stream on{device{0}};
  extend::virtual_pages pages{device{0}};
  ASSERT_TRUE(pages.map(0, 64 * mib, 32 * mib));
  auto const held = free_bytes();
  write(on, at(pages, 0), 64 * mib, 2);
  ASSERT_TRUE(pages.alias(0, 128 * mib));
  EXPECT_GE(free_bytes(), held - 4 * mib) << "an alias needs memory only for page tables";
  check(on, at(pages, 128 * mib), 32 * mib, 2);
  write(on, at(pages, 128 * mib), 32 * mib, 3);
  check(on, at(pages, 0), 32 * mib, 3);
  check(on, at(pages, 32 * mib), 32 * mib, 2);
  on.synchronize();
  ASSERT_TRUE(pages.unmap(0, 32 * mib));
  EXPECT_LE(free_bytes(), held + 4 * mib) << "the alias holds it";
  check(on, at(pages, 128 * mib), 32 * mib, 3);
  on.synchronize();
}

TEST_F(virtual_pages_on_device, pages_keep_their_contents_when_they_move) {
  struct laid {
    std::size_t offset, bytes;
    std::uint64_t value;
  };
  stream on{device{0}};
  extend::virtual_pages pages{device{0}, {.address_space = 4096 * mib}};
  std::mt19937_64 random{7};
  std::vector<laid> all;
  for (std::uint64_t i = 1; i <= 400; ++i) {
    auto const bytes = (1 + random() % 16) * 2 * mib;
    auto const place = pages.find_extent(bytes).value_or(pages.address_space());
    if (all.size() < 16 || random() % 3 == 0) {
      ASSERT_TRUE(pages.map(place, bytes, bytes));
      write(on, at(pages, place), bytes, i);
      all.push_back({place, bytes, i});
      continue;
    }
    auto& one = all[random() % all.size()];
    on.synchronize();
    if (random() % 2 == 0) {
      auto const to = pages.find_extent(one.bytes).value_or(pages.address_space());
      ASSERT_TRUE(pages.move(one.offset, to));
      one.offset = to;
      check(on, at(pages, one.offset), one.bytes, one.value);
    } else {
      ASSERT_TRUE(pages.unmap(one.offset, one.bytes));
      one = all.back();
      all.pop_back();
    }
  }
  for (auto const& one : all) check(on, at(pages, one.offset), one.bytes, one.value);
  on.synchronize();
}

TEST_F(virtual_pages_on_device, no_call_waits_for_a_running_kernel) {
  stream busy{device{0}}, on{device{0}};
  extend::virtual_pages pages{device{0}};
  ASSERT_TRUE(pages.map(0, 32 * mib));
  unsigned* flag = nullptr;
  ASSERT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&flag), sizeof *flag, cudaMemAttachGlobal), cudaSuccess);
  *flag = 0;
  stamp::wait_for(busy.get(), flag); // runs until the other stream's kernel has run
  EXPECT_TRUE(pages.map(64 * mib, 32 * mib));
  EXPECT_TRUE(pages.alias(0, 128 * mib));
  EXPECT_TRUE(pages.unmap(0, 2 * mib));
  EXPECT_TRUE(pages.unmap(64 * mib, 32 * mib));
  stamp::raise(on.get(), flag);
  on.synchronize();
  busy.synchronize();
  EXPECT_EQ(cudaFree(flag), cudaSuccess);
}

TEST_F(virtual_pages_on_device, page_is_exported_as_a_file_descriptor) {
  extend::virtual_pages pages{device{0}, {.exportable = true}};
  ASSERT_TRUE(pages.map(0, 4 * mib, 4 * mib));
  auto const file = pages.export_page(pages.base());
  ASSERT_TRUE(file);
  EXPECT_EQ(::close(file->descriptor), 0);
  EXPECT_FALSE(pages.unmap(0, 4 * mib));
}

// Compares the driver with the simulated one, which is stricter in two places: driver 580 maps beyond the end of a
// reservation, and unmaps ranges that are only partly mapped.
TEST_F(virtual_pages_on_device, driver_refuses_what_the_simulated_driver_refuses) {
  auto const& cu = driver_api::driver();
  device_guard const scope{device{0}};
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc const right{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  auto const page = 2 * mib;
  CUdeviceptr base = 0;
  CUmemGenericAllocationHandle two = 0, other = 0, again = 0;
  EXPECT_EQ(cu.mem_address_reserve(&base, page + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu.mem_address_reserve(&base, 8 * page, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(base % page, 0u);
  EXPECT_EQ(cu.mem_create(&two, page / 2, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu.mem_create(&two, 2 * page, &properties, 0), CUDA_SUCCESS);
  EXPECT_NE(cu.mem_map(base + 4096, page, 0, two, 0), CUDA_SUCCESS) << "misaligned"; // 580: "not supported"
  EXPECT_NE(cu.mem_map(base, 4 * page, 0, two, 0), CUDA_SUCCESS) << "more than the handle has";
  ASSERT_EQ(cu.mem_map(base, 2 * page, 0, two, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.mem_create(&other, page, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.mem_map(base + page, page, 0, other, 0), CUDA_ERROR_INVALID_VALUE) << "something is mapped there";
  unsigned long long flags = 99;
  EXPECT_EQ(cu.mem_get_access(&flags, &properties.location, base), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(cu.mem_set_access(base, 4 * page, &right, 1), CUDA_ERROR_INVALID_VALUE) << "a part is not mapped";
  EXPECT_EQ(cu.mem_set_access(base, page, &right, 1), CUDA_ERROR_INVALID_VALUE) << "half a mapping";
  EXPECT_EQ(cu.mem_set_access(base, 2 * page, &right, 1), CUDA_SUCCESS);
  EXPECT_EQ(cu.mem_unmap(base, page), CUDA_ERROR_INVALID_VALUE) << "half a mapping";
  EXPECT_EQ(cu.mem_address_free(base, 8 * page), CUDA_ERROR_INVALID_VALUE) << "something is mapped there";
  EXPECT_EQ(cu.mem_release(two), CUDA_SUCCESS) << "while it is mapped";
  EXPECT_EQ(cu.mem_retain_allocation_handle(&again, reinterpret_cast<void*>(base + page)), CUDA_SUCCESS);
  EXPECT_EQ(again, two);
  EXPECT_EQ(cu.mem_release(again), CUDA_SUCCESS);
  EXPECT_EQ(cu.mem_map(base + 2 * page, page, 0, other, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.mem_unmap(base, 3 * page), CUDA_SUCCESS) << "two mappings at once, one without rights";
  EXPECT_EQ(cu.mem_release(other), CUDA_SUCCESS);
  EXPECT_EQ(cu.mem_address_free(base, 4 * page), CUDA_ERROR_INVALID_VALUE) << "half a reservation";
  EXPECT_EQ(cu.mem_address_free(base, 8 * page), CUDA_SUCCESS);
}

} // namespace
