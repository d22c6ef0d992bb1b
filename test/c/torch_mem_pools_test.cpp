// Pools of PyTorch: which allocations they serve, memory of the caller's functions, ranges.
// SPDX-License-Identifier: Apache-2.0
#include "torch_pools_fixture.hpp"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace {

class torch_mem_pools : public torch_pools {};

TEST_F(torch_mem_pools, pools_serve_the_streams_of_their_filters_the_newest_first) {
  begin(first);
  auto* const in_first = block(mib);
  begin(second, [this](CUstream on) { return on == stream; });
  auto* const in_second = block(mib);
  auto* const other = make_stream(device);
  auto* const on_other = allocate_block(mib, device, other, promises);
  EXPECT_EQ(pool_of(in_first), first);
  EXPECT_EQ(pool_of(in_second), second);
  EXPECT_EQ(pool_of(on_other), first);
  end(first);
  auto* const outside = allocate_block(mib, device, other, promises);
  EXPECT_EQ(pool_of(outside), id{});
  end(second);
  EXPECT_EQ((std::pair{uses(first), uses(second)}), (std::pair{1, 1}));
  for (auto* const each : {in_first, in_second, on_other, outside}) free_block(each);
  release(first);
  release(second);
}

TEST_F(torch_mem_pools, misuse_is_refused) {
  begin(first);
  EXPECT_THROW(begin(first), std::invalid_argument);
  end(first);
  EXPECT_THROW(end(first), std::invalid_argument);
  EXPECT_THROW(end(second), std::invalid_argument);
  EXPECT_THROW(gpumem_torch_begin_allocate_to_pool(-1, first, everything), std::invalid_argument);
  release(first);
  release(first); // once more than it was begun
  release(second);
  int count = 0;
  EXPECT_EQ(gpumem_torch_pool_use_count(device, second, &count), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("there is no pool 0, 2"));
  EXPECT_EQ(gpumem_torch_pool_use_count(device, first, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_torch_set_pool_unsplit(device, second), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_torch_describe_block(&count, nullptr), GPUMEM_INVALID_ARGUMENT);
  gpumem_torch_block found{};
  found.size = sizeof found;
  EXPECT_EQ(gpumem_torch_describe_block(&count, &found), GPUMEM_GRANTED);
  EXPECT_EQ(found.device, -1);
}

TEST_F(torch_mem_pools, pools_live_until_they_have_neither_uses_nor_blocks) {
  begin(first);
  auto* const kept = block(3 * mib);
  end(first);
  EXPECT_EQ(gpumem_torch_retain_pool(device, first, nullptr), GPUMEM_GRANTED);
  EXPECT_EQ(uses(first), 2);
  release(first);
  release(first);
  gpumem_torch_empty_cache();
  EXPECT_EQ(pool_of(kept), first) << "it has a block";
  free_block(kept);
  EXPECT_EQ(uses(first), 0);
  EXPECT_EQ(gpumem_torch_empty_pool(device, first), GPUMEM_GRANTED);
  int count = 0;
  EXPECT_EQ(gpumem_torch_pool_use_count(device, first, &count), GPUMEM_INVALID_ARGUMENT);
}

struct functions {
  static void* allocate(void* context, void*, std::size_t bytes, std::size_t) {
    auto& self = *static_cast<functions*>(context);
    if (bytes > self.room) return nullptr;
    CUdeviceptr made = 0;
    if (self.make(&made, bytes) != CUDA_SUCCESS) return nullptr;
    self.sizes.push_back(bytes);
    return reinterpret_cast<void*>(made);
  }
  static void free(void* context, void*, void* pointer, std::size_t, std::size_t) {
    auto& self = *static_cast<functions*>(context);
    ++self.freed;
    self.destroy(reinterpret_cast<CUdeviceptr>(pointer));
  }
  gpumem_callbacks table() { return {sizeof(gpumem_callbacks), this, &allocate, &free}; }

  CUresult (*make)(CUdeviceptr*, std::size_t);
  CUresult (*destroy)(CUdeviceptr);
  std::size_t room = SIZE_MAX;
  std::vector<std::size_t> sizes = {};
  std::size_t freed = 0;
};

TEST_F(torch_mem_pools, pools_draw_from_functions_of_the_caller) {
  static functions from{driver<decltype(&cuMemAlloc)>("cuMemAlloc_v2"), driver<decltype(&cuMemFree)>("cuMemFree_v2")};
  auto table = from.table();
  table.free = nullptr;
  EXPECT_EQ(gpumem_torch_retain_pool(device, first, &table), GPUMEM_INVALID_ARGUMENT);
  table = from.table();
  ASSERT_EQ(gpumem_torch_retain_pool(device, first, &table), GPUMEM_GRANTED);
  begin(first);
  auto* const one = block(5 * mib);
  free_block(one);
  auto* const two = block(5 * mib);
  EXPECT_EQ(one, two);
  EXPECT_EQ(from.sizes, (std::vector{5 * mib}));
  end(first);
  EXPECT_EQ(figures(device).reserved.current, 5 * mib + statistics(device).reserved);
  from.room = mib;
  begin(first);
  void* none = nullptr;
  EXPECT_EQ(gpumem_torch_allocate_block(9 * mib, device, stream, promises, &none), GPUMEM_EXHAUSTED);
  end(first);
  free_block(two);
  for (int i = 0; i < 3; ++i) release(first);
  empty_until([&] { return from.freed == 1; });
  EXPECT_EQ(from.freed, 1u);
}

TEST_F(torch_mem_pools, memory_of_the_callers_functions_counts_toward_the_fraction) {
  static functions from{driver<decltype(&cuMemAlloc)>("cuMemAlloc_v2"), driver<decltype(&cuMemFree)>("cuMemFree_v2")};
  auto const table = from.table();
  auto const limit_of_pool = [] { return statistics(device).limit; };
  void* none = nullptr;
  gpumem_torch_memory_fraction(64.0 / (80 << 10), device);
  free_block(block(mib));
  EXPECT_EQ(limit_of_pool(), 64 * mib);
  ASSERT_EQ(gpumem_torch_retain_pool(device, first, &table), GPUMEM_GRANTED);
  begin(first);
  auto* const own = block(40 * mib);
  EXPECT_EQ(limit_of_pool(), 24 * mib);
  EXPECT_EQ(figures(device).limit, 64 * mib);
  EXPECT_EQ(gpumem_torch_allocate_block(32 * mib, device, stream, promises, &none), GPUMEM_EXHAUSTED);
  EXPECT_EQ(from.sizes, (std::vector{40 * mib})) << "the functions were not asked for more";
  from.room = mib;
  EXPECT_EQ(gpumem_torch_allocate_block(10 * mib, device, stream, promises, &none), GPUMEM_EXHAUSTED);
  EXPECT_EQ(limit_of_pool(), 24 * mib) << "the functions gave nothing";
  end(first);
  gpumem_torch_memory_fraction(32.0 / (80 << 10), device); // less than is drawn
  EXPECT_LE(limit_of_pool(), mib);
  gpumem_torch_memory_fraction(64.0 / (80 << 10), device);
  free_block(own);
  for (int i = 0; i < 2; ++i) release(first);
  empty_until([&] { return limit_of_pool() == 64 * mib; });
  EXPECT_EQ(limit_of_pool(), 64 * mib);
  gpumem_torch_memory_fraction(1, device);
}

TEST_F(torch_mem_pools, blocks_of_an_unsplit_pool_are_single_allocations) {
  static functions from{driver<decltype(&cuMemAlloc)>("cuMemAlloc_v2"), driver<decltype(&cuMemFree)>("cuMemFree_v2")};
  auto const table = from.table();
  for (auto const pool : {first, second}) {
    ASSERT_EQ(gpumem_torch_retain_pool(device, pool, pool == first ? &table : nullptr), GPUMEM_GRANTED);
    ASSERT_EQ(gpumem_torch_set_pool_unsplit(device, pool), GPUMEM_GRANTED);
    begin(pool);
    for (auto* const each : {block(1000), block(2000)}) free_block(each);
    EXPECT_EQ(gpumem_torch_set_pool_unsplit(device, pool), GPUMEM_INVALID_ARGUMENT) << "it has given out memory";
    end(pool);
    release(pool);
    release(pool);
  }
  EXPECT_EQ(from.sizes, (std::vector<std::size_t>{1000, 2000}));
}

TEST_F(torch_mem_pools, memory_of_a_pool_serves_requests_that_find_none) {
  static functions from{driver<decltype(&cuMemAlloc)>("cuMemAlloc_v2"), driver<decltype(&cuMemFree)>("cuMemFree_v2")};
  auto const table = from.table();
  ASSERT_EQ(gpumem_torch_retain_pool(device, first, &table), GPUMEM_GRANTED);
  begin(first);
  auto* const own = block(64 * mib);
  end(first);
  free_block(own);
  free_block(block(mib)); // the device's pool
  gpumem_torch_memory_fraction(32.0 / (80 << 10), device);
  void* none = nullptr;
  EXPECT_EQ(gpumem_torch_allocate_block(64 * mib, device, stream, promises, &none), GPUMEM_TOO_LARGE);
  ASSERT_EQ(gpumem_torch_use_pool_on_out_of_memory(device, first, 1), GPUMEM_GRANTED);
  auto* const last = block(64 * mib);
  EXPECT_EQ(last, own);
  free_block(last);
  ASSERT_EQ(gpumem_torch_use_pool_on_out_of_memory(device, first, 0), GPUMEM_GRANTED);
  EXPECT_EQ(gpumem_torch_allocate_block(64 * mib, device, stream, promises, &none), GPUMEM_TOO_LARGE);
  gpumem_torch_memory_fraction(1, device);
  release(first);
  release(first);
}

TEST_F(torch_mem_pools, ranges_show_each_byte_once_with_its_pool) {
  struct range {
    char* base;
    std::size_t bytes;
    bool live;
    id pool;
  };
  std::vector<range> seen;
  auto* const outside = block(3 * mib);
  begin(first);
  auto* const inside = block(5 * mib);
  end(first);
  auto* const freed = block(7 * mib);
  free_block(freed);
  auto const visit = [](void* to, gpumem_range const* one, unsigned long long a, unsigned long long b) {
    static_cast<std::vector<range>*>(to)->push_back(
        {static_cast<char*>(one->base), one->bytes, one->live != 0, {a, b}});
  };
  ASSERT_EQ(gpumem_torch_visit_ranges(device, visit, &seen), GPUMEM_GRANTED);
  std::size_t sum = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    sum += seen[i].bytes;
    if (i > 0) EXPECT_LE(seen[i - 1].base + seen[i - 1].bytes, seen[i].base);
  }
  EXPECT_EQ(sum, figures(device).reserved.current);
  auto const at = [&](void* pointer) {
    return *std::ranges::find_if(seen, [&](range const& one) { return one.base == pointer; });
  };
  EXPECT_TRUE(at(outside).live && at(outside).pool == id{});
  EXPECT_TRUE(at(inside).live && at(inside).pool == first);
  EXPECT_EQ(std::ranges::count_if(seen, [](range const& one) { return one.live; }), 2);
  EXPECT_EQ(gpumem_torch_visit_ranges(device, nullptr, nullptr), GPUMEM_INVALID_ARGUMENT);
  free_block(outside);
  free_block(inside);
  release(first);
}

TEST_F(torch_mem_pools, pages_are_told) {
  static std::ptrdiff_t mapped;
  mapped = static_cast<std::ptrdiff_t>(figures(device).reserved.current);
  gpumem_torch_observe_pages([](int of, void*, std::size_t bytes, int now) {
    if (of == device) mapped += now ? static_cast<std::ptrdiff_t>(bytes) : -static_cast<std::ptrdiff_t>(bytes);
  });
  auto* const one = block(33 * mib);
  EXPECT_EQ(mapped, static_cast<std::ptrdiff_t>(figures(device).reserved.current));
  free_block(one);
  empty_cache();
  EXPECT_EQ(mapped, 0);
  gpumem_torch_observe_pages(nullptr);
}

} // namespace
