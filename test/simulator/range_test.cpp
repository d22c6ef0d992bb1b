// Attributes of ranges of managed memory: what advice and prefetches have said.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <array>
#include <vector>

namespace {

constexpr int no_device = CU_DEVICE_INVALID;
constexpr int on_host = CU_DEVICE_CPU;
constexpr std::size_t unit = 4096; // pages of the host divide it, or it them

class memory_range : public simulated_device {
protected:
  memory_range() : simulated_device(two_devices()) {}

  static simulator::options two_devices() {
    auto how = stepped_by_hand();
    how.devices = 2;
    return how;
  }

  void SetUp() override {
    simulated_device::SetUp();
    ASSERT_EQ(cu().allocate_managed(&memory_, 16 * unit, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  }

  static CUmemLocation device(int id) { return {CU_MEM_LOCATION_TYPE_DEVICE, id}; }
  static constexpr CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};

  CUresult advise(CUmem_advise advice, CUmemLocation where, std::size_t first = 0, std::size_t count = 16) const {
    const decltype(&::cuMemAdvise) call = entry{"cuMemAdvise"};
    return call(memory_ + first * unit, count * unit, advice, where);
  }

  CUresult prefetch(CUmemLocation to, std::size_t first = 0, std::size_t count = 16) const {
    const decltype(&::cuMemPrefetchAsync) call = entry{"cuMemPrefetchAsync"};
    return call(memory_ + first * unit, count * unit, to, 0, new_stream());
  }

  CUresult ask(void* place, std::size_t size, CUmem_range_attribute which, std::size_t bytes = 16 * unit) const {
    const decltype(&::cuMemRangeGetAttribute) call = entry{"cuMemRangeGetAttribute"};
    return call(place, size, which, memory_, bytes);
  }

  int of(CUmem_range_attribute which, std::size_t first = 0, std::size_t count = 16) const {
    const decltype(&::cuMemRangeGetAttribute) call = entry{"cuMemRangeGetAttribute"};
    int value = -9;
    EXPECT_EQ(call(&value, sizeof value, which, memory_ + first * unit, count * unit), CUDA_SUCCESS);
    return value;
  }

  std::vector<int> accessed_by(std::size_t places) const {
    std::vector<int> all(places, -9);
    EXPECT_EQ(ask(all.data(), places * sizeof(int), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY), CUDA_SUCCESS);
    return all;
  }

  CUdeviceptr memory_ = 0;
};

TEST_F(memory_range, without_advice_it_has_none) {
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), no_device);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), no_device);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_INVALID);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_INVALID);
  EXPECT_EQ(accessed_by(2), (std::vector{no_device, no_device}));
}

TEST_F(memory_range, advice_is_remembered_and_withdrawn) {
  EXPECT_EQ(advise(CU_MEM_ADVISE_SET_READ_MOSTLY, device(0)), CUDA_SUCCESS);
  EXPECT_EQ(advise(CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device(1)), CUDA_SUCCESS);
  EXPECT_EQ(advise(CU_MEM_ADVISE_SET_ACCESSED_BY, device(1)), CUDA_SUCCESS);
  EXPECT_EQ(advise(CU_MEM_ADVISE_SET_ACCESSED_BY, host), CUDA_SUCCESS);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), 1);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID), 1);
  EXPECT_EQ(accessed_by(3), (std::vector{on_host, 1, no_device}));
  EXPECT_EQ(accessed_by(1).size(), 1u);
  EXPECT_EQ(advise(CU_MEM_ADVISE_UNSET_READ_MOSTLY, device(0), 8, 8), CUDA_SUCCESS);
  EXPECT_EQ(advise(CU_MEM_ADVISE_UNSET_ACCESSED_BY, device(1)), CUDA_SUCCESS);
  EXPECT_EQ(advise(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, host), CUDA_SUCCESS);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0) << "half of the pages";
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, 8), 1);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), no_device);
  EXPECT_EQ(accessed_by(2), (std::vector{on_host, no_device}));
}

TEST_F(memory_range, parts_are_joined_where_they_agree) {
  EXPECT_EQ(prefetch(device(0), 0, 8), CUDA_SUCCESS);
  EXPECT_EQ(prefetch(device(0), 8, 8), CUDA_SUCCESS);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), 0);
  EXPECT_EQ(prefetch({CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0}, 4, 4), CUDA_SUCCESS);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), no_device);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 4), 0);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 4, 4), on_host);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, 4, 4), CU_MEM_LOCATION_TYPE_HOST_NUMA);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, 4, 4), 0);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 8, 8), 0);
}

TEST_F(memory_range, advice_ends_with_the_memory) {
  EXPECT_EQ(advise(CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device(1)), CUDA_SUCCESS);
  EXPECT_EQ(advise(CU_MEM_ADVISE_SET_ACCESSED_BY, device(1)), CUDA_SUCCESS);
  CUdeviceptr const before = memory_;
  ASSERT_EQ(cu().free(memory_), CUDA_SUCCESS);
  ASSERT_EQ(cu().allocate_managed(&memory_, 16 * unit, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(memory_, before);
  EXPECT_EQ(of(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), no_device);
  EXPECT_EQ(accessed_by(1), std::vector{no_device});
}

TEST_F(memory_range, several_attributes_are_read_at_once) {
  const decltype(&::cuMemRangeGetAttributes) call = entry{"cuMemRangeGetAttributes"};
  EXPECT_EQ(advise(CU_MEM_ADVISE_SET_ACCESSED_BY, device(0)), CUDA_SUCCESS);
  EXPECT_EQ(prefetch(device(1)), CUDA_SUCCESS);
  std::array<int, 2> devices{};
  int last = -9;
  CUmem_range_attribute which[] = {CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION};
  void* places[] = {devices.data(), &last};
  std::size_t sizes[] = {sizeof devices, sizeof last};
  EXPECT_EQ(call(places, sizes, which, 2, memory_, unit), CUDA_SUCCESS);
  EXPECT_EQ(devices, (std::array{0, no_device}));
  EXPECT_EQ(last, 1);
  EXPECT_EQ(call(places, sizes, which, 0, memory_, unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call(nullptr, sizes, which, 2, memory_, unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call(places, sizes, which, 2, address(new_memory(unit)), unit), CUDA_ERROR_INVALID_VALUE);
  sizes[1] = 2;
  EXPECT_EQ(call(places, sizes, which, 2, memory_, unit), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(memory_range, invalid_arguments_are_refused) {
  std::array<int, 2> value{};
  EXPECT_EQ(ask(nullptr, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value.data(), 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value.data(), 0, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value.data(), 6, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value.data(), 4, static_cast<CUmem_range_attribute>(15)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value.data(), 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value.data(), 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 17 * unit), CUDA_ERROR_INVALID_VALUE);
}

} // namespace
