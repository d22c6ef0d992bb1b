// The functions that PyTorch's allocator class calls: frees by address alone, figures, streams that live.
// SPDX-License-Identifier: Apache-2.0
#include "torch_fixture.hpp"

namespace {

TEST_F(torch_blocks, figures_count_blocks_by_size) {
  auto* const stream = make_stream(13);
  EXPECT_EQ(figures(13).bytes[GPUMEM_TORCH_ALL].current, 0u);
  auto* const small = allocate_block(1000, 13, stream);
  auto* const large = allocate_block(mib + 1, 13, stream);
  auto now = figures(13);
  expect(now.blocks[GPUMEM_TORCH_ALL], {2, 2, 2, 0});
  expect(now.blocks[GPUMEM_TORCH_SMALL], {1, 1, 1, 0});
  expect(now.bytes[GPUMEM_TORCH_SMALL], {1024, 1024, 1024, 0});
  expect(now.bytes[GPUMEM_TORCH_LARGE], {mib + 512, mib + 512, mib + 512, 0});
  expect(now.requested[GPUMEM_TORCH_ALL], {mib + 1001, mib + 1001, mib + 1001, 0});
  EXPECT_EQ(now.reserved.current, now.reserved.allocated);
  EXPECT_EQ(now.reserved.current, now.free.current + statistics(13).allocated);
  EXPECT_GT(now.pages.current, 0u);
  free_block(large);
  gpumem_torch_reset_peaks(13);
  gpumem_torch_reset_totals(13);
  auto* const next = allocate_block(100, 13, stream);
  free_block(next);
  now = figures(13);
  expect(now.blocks[GPUMEM_TORCH_ALL], {1, 2, 1, 1});
  expect(now.bytes[GPUMEM_TORCH_LARGE], {0, 0, 0, 0});
  expect(now.bytes[GPUMEM_TORCH_SMALL], {1024, 1536, 512, 512});
  EXPECT_EQ(now.reserved.allocated + now.reserved.freed, 0u);
  EXPECT_EQ(now.reserved.peak, now.reserved.current);
  free_block(small);
  empty_cache();
  now = figures(13);
  expect(now.reserved, {0, now.reserved.peak, 0, now.reserved.peak});
  EXPECT_EQ(now.pages.freed - now.pages.allocated, now.pages.peak);
}

// The block that a visitor of ranges looks for.
struct seen_block {
  void* block;
  std::uint64_t requested;
};

TEST_F(torch_blocks, rounded_requests_count_with_their_room) {
  constexpr std::size_t bytes = mib + 100;
  constexpr std::size_t room = 2 * mib;
  auto* const stream = make_stream(9);
  auto* const other = make_stream(9);
  void* none = nullptr;
  EXPECT_EQ(gpumem_torch_allocate_rounded_block(room, bytes, 9, stream, 0, &none), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("the room is less than the bytes"));
  EXPECT_EQ(gpumem_torch_allocate_rounded_block(bytes, room, 9, stream, 0, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(figures(9).blocks[GPUMEM_TORCH_ALL].allocated, 0u);
  for (bool const recorded : {false, true}) {
    seen_block seen{};
    ASSERT_EQ(gpumem_torch_allocate_rounded_block(bytes, room, 9, stream, 0, &seen.block), GPUMEM_GRANTED);
    auto* const plain = allocate_block(bytes, 9, stream);
    auto now = figures(9);
    EXPECT_EQ(now.bytes[GPUMEM_TORCH_LARGE].current, room + mib + 512);
    EXPECT_EQ(now.requested[GPUMEM_TORCH_ALL].current, 2 * bytes);
    EXPECT_GE(statistics(9).allocated, room + bytes);
    gpumem_torch_block found{};
    found.size = sizeof found;
    EXPECT_EQ(gpumem_torch_describe_block(seen.block, &found), GPUMEM_GRANTED);
    EXPECT_EQ(found.bytes, bytes);
    auto const visit = [](void* to, gpumem_range const* one, unsigned long long, unsigned long long) {
      auto& wanted = *static_cast<seen_block*>(to);
      if (one->base == wanted.block) wanted.requested = one->requested;
    };
    EXPECT_EQ(gpumem_torch_visit_ranges(9, visit, &seen), GPUMEM_GRANTED);
    EXPECT_EQ(seen.requested, bytes);
    if (recorded) EXPECT_EQ(gpumem_torch_record_block_stream(seen.block, other, -1), GPUMEM_GRANTED);
    std::size_t freed = 0;
    EXPECT_EQ(gpumem_torch_free_block(seen.block, &freed), GPUMEM_GRANTED);
    EXPECT_EQ(freed, room);
    EXPECT_EQ(gpumem_torch_free_block(plain, &freed), GPUMEM_GRANTED);
    EXPECT_EQ(freed, bytes);
    now = figures(9);
    EXPECT_EQ(now.bytes[GPUMEM_TORCH_ALL].current + now.requested[GPUMEM_TORCH_ALL].current, 0u);
  }
}

TEST_F(torch_blocks, pointers_that_are_no_blocks_are_refused) {
  auto* const stream = make_stream(14);
  auto* const block = allocate_block(mib, 14, stream);
  int foreign = 0;
  EXPECT_EQ(gpumem_torch_free_block(&foreign, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("no live block"));
  EXPECT_EQ(gpumem_torch_free_block(static_cast<char*>(block) + 256, nullptr), GPUMEM_INVALID_ARGUMENT);
  gpumem_pool* pool = nullptr;
  gpumem_pool* expected = nullptr;
  EXPECT_EQ(gpumem_torch_pool(14, &expected), GPUMEM_GRANTED);
  EXPECT_EQ(gpumem_pool_of(block, &pool), GPUMEM_GRANTED);
  EXPECT_EQ(pool, expected);
  free_block(block);
  EXPECT_EQ(gpumem_torch_free_block(block, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_pool_of(block, &pool), GPUMEM_GRANTED);
  EXPECT_EQ(pool, nullptr);
  free_block(nullptr);
  void* none = &foreign;
  EXPECT_EQ(gpumem_torch_allocate_block(0, 14, stream, 1, &none), GPUMEM_GRANTED);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(gpumem_torch_allocate_block(1, 14, stream, 1, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_torch_read_statistics(14, nullptr), GPUMEM_INVALID_ARGUMENT);
  gpumem_torch_statistics tiny{};
  EXPECT_EQ(gpumem_torch_read_statistics(14, &tiny), GPUMEM_INVALID_ARGUMENT);
}

// A stream whose owner has promised that it lives, and the legacy stream, need no driver call where memory is at hand.
TEST_F(torch_blocks, streams_that_live_need_few_driver_calls) {
  auto* const stream = make_stream(15);
  for (auto* const on : {stream, CUstream{}}) {
    for (int i = 0; i < 100; ++i) free_block(allocate_block(mib, 15, on));
    auto const before = calls();
    for (int i = 0; i < 100; ++i) free_block(allocate_block(mib, 15, on));
    EXPECT_EQ(calls() - before, 0u);
  }
}

TEST_F(torch_blocks, memory_is_reused_behind_the_work_of_recorded_streams) {
  auto* const main = make_stream(15);
  auto* const side = make_stream(15);
  auto* const block = allocate_block(3 * mib, 15, main);
  ASSERT_EQ(gpumem_torch_record_block_stream(static_cast<char*>(block) + mib, side, -1), GPUMEM_GRANTED);
  bool done = false;
  simulator::work(side, {simulator::write(block, mib)}, milliseconds{1}, [&] { done = true; });
  free_block(block);
  auto* const next = allocate_block(3 * mib, 15, main);
  bool early = false;
  simulator::work(main, {simulator::write(next, mib)}, milliseconds{1}, [&] { early = next == block && !done; });
  simulator::run_until_idle();
  EXPECT_FALSE(early);
  free_block(next);
}

} // namespace
