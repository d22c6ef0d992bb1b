// The functions that PyTorch's C++ calls: failures as exceptions, recorded streams, memory fractions, graphs. Each test
// has a device of its own, because a device keeps its pool for the life of the process.
// SPDX-License-Identifier: Apache-2.0
#include "torch_fixture.hpp"

#include <atomic>
#include <new>
#include <string>
#include <thread>

namespace {

TEST_F(torch, allocation_without_memory_throws_bad_alloc) {
  gpumem_torch_memory_fraction(0.001, 0); // of 80 GiB
  auto* const stream = make_stream(0);
  auto* const block = allocate(64 * mib, 0, stream);
  try {
    allocate(64 * mib, 0, stream);
    FAIL() << "there were 82 MiB";
  } catch (std::bad_alloc const& e) { EXPECT_THAT(e.what(), HasSubstr("gpumem: out of memory (exhausted)")); }
  EXPECT_THAT(gpumem_last_error(), HasSubstr("requested 64.0 MiB, live 64.0 MiB"));
  EXPECT_EQ(gpumem_torch_try_allocate(64 * mib, 0, stream), nullptr);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("exhausted"));
  EXPECT_EQ(statistics(0).live, 64 * mib);
  EXPECT_EQ(statistics(0).limit, static_cast<std::size_t>(0.001 * static_cast<double>(std::size_t{80} << 30)));
  free(block, 64 * mib, 0, stream);
  EXPECT_THROW(gpumem_torch_allocate(1, 16, nullptr), std::invalid_argument);
  EXPECT_THROW(gpumem_torch_allocate(1, -1, nullptr), std::invalid_argument);
  EXPECT_THROW(gpumem_torch_allocate(1, 1000, nullptr), std::invalid_argument);
  gpumem_torch_memory_fraction(1, 0);
}

TEST_F(torch, zero_bytes_give_a_null_pointer_without_a_failure) {
  EXPECT_EQ(gpumem_torch_allocate(0, 1, nullptr), nullptr);
  gpumem_torch_free(nullptr, 0, 1, nullptr);
  EXPECT_EQ(statistics(1).allocations, 0u);
}

TEST_F(torch, memory_fraction_can_change_while_the_pool_is_used) {
  EXPECT_THROW(gpumem_torch_memory_fraction(-0.1, 2), std::invalid_argument);
  EXPECT_THROW(gpumem_torch_memory_fraction(1.1, 2), std::invalid_argument);
  EXPECT_THROW(gpumem_torch_memory_fraction(0.5, -1), std::invalid_argument);
  auto* const stream = make_stream(2);
  free(allocate(mib, 2, stream), mib, 2, stream);
  EXPECT_EQ(statistics(2).limit, 0u);
  gpumem_torch_memory_fraction(0.5, 2);
  EXPECT_EQ(statistics(2).limit, std::size_t{40} << 30);
  gpumem_torch_memory_fraction(0, 2);
  EXPECT_EQ(gpumem_torch_try_allocate(64 * mib, 2, stream), nullptr);
  gpumem_torch_memory_fraction(1, 2);
  EXPECT_EQ(statistics(2).limit, 0u);
  EXPECT_EQ(gpumem_torch_configure("limit=1GiB"), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("already has its pool"));
}

// PyTorch promises to wait for the work that the stream has at the free, not only at the recording.
TEST_F(torch, work_enqueued_after_record_stream_is_waited_for) {
  auto* const main = make_stream(3);
  auto* const side = make_stream(3);
  auto* const block = gpumem_torch_allocate(mib, 3, main);
  gpumem_torch_record_stream(block, side);
  gpumem_torch_record_stream(block, side);
  gpumem_torch_record_stream(block, main);
  bool done = false;
  simulator::work(side, {simulator::write(block, mib)}, milliseconds{1}, [&] { done = true; });
  gpumem_torch_free(block, mib, 3, main);
  EXPECT_FALSE(done);
  auto* const next = gpumem_torch_allocate(mib, 3, main);
  bool early = false;
  simulator::work(main, {simulator::write(next, mib)}, milliseconds{1}, [&] { early = next == block && !done; });
  simulator::run_until_idle();
  EXPECT_TRUE(done);
  EXPECT_FALSE(early);
  gpumem_torch_free(next, mib, 3, main);
}

// The same under a limit that leaves no other memory, with the checker watching.
TEST_F(torch, memory_with_a_recorded_use_is_reused_after_a_wait) {
  gpumem_torch_memory_fraction(5.0 / (80 << 10), 4); // 5 MiB
  auto* const main = make_stream(4);
  auto* const side = make_stream(4);
  auto* const block = allocate(4 * mib, 4, main);
  simulator::run_until_idle();
  ASSERT_EQ(driver_synchronize(), CUDA_SUCCESS); // so that `side` may use memory that `main` allocated
  gpumem_torch_record_stream(block, side);
  simulator::work(side, {simulator::write(block, 4 * mib)}, milliseconds{1});
  simulator::detail::use_recorded(side, block);
  free(block, 4 * mib, 4, main);
  auto* const next = allocate(4 * mib, 4, main);
  EXPECT_EQ(next, block);
  EXPECT_EQ(statistics(4).reuse_waited + statistics(4).reuse_after_sync, 1u);
  free(next, 4 * mib, 4, main);
}

TEST_F(torch, foreign_pointers_are_not_recorded) {
  int foreign = 0;
  auto* const stream = make_stream(5);
  gpumem_torch_record_stream(&foreign, stream);
  gpumem_torch_record_stream(nullptr, stream);
  auto* const block = allocate(mib, 5, stream);
  gpumem_torch_record_stream(static_cast<std::byte*>(block) + 4096, make_stream(5)); // inside, as a tensor's view
  free(block, mib, 5, stream);
  EXPECT_EQ(statistics(5).live, 0u);
}

// A destroyed stream cannot be waited for: the library waits for the device. The driver cannot tell any more what the
// stream did with the block, so the block is never reused.
TEST_F(torch, block_recorded_on_a_destroyed_stream_is_kept) {
  auto* const main = make_stream(6);
  auto* const side = make_stream(6);
  auto* const block = allocate(mib, 6, main);
  gpumem_torch_record_stream(block, side);
  simulator::run_until_idle();
  destroy(side);
  testing::internal::CaptureStderr();
  free(block, mib, 6, main);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("PyTorch freed"));
  EXPECT_EQ(statistics(6).live, mib);
  auto const found = simulator::take_findings();
  EXPECT_FALSE(found.empty());
  for (auto const& each : found) EXPECT_EQ(each.kind, simulator::finding_kind::dead_stream);
}

// PyTorch's handle 0 is the same stream for all threads and current devices.
TEST_F(torch, default_stream_is_shared_by_all_threads) {
  make_current(7);
  // Too large for the thread caches.
  auto* const block = gpumem_torch_allocate(2 * mib, 7, nullptr);
  make_current(0);
  gpumem_torch_free(block, 2 * mib, 7, nullptr);
  void* next = nullptr;
  std::thread{[&] { next = gpumem_torch_allocate(2 * mib, 7, nullptr); }}.join();
  EXPECT_EQ(next, block);
  EXPECT_EQ(statistics(7).reuse_same_stream, 1u);
  gpumem_torch_free(next, 2 * mib, 7, nullptr);
  EXPECT_EQ(statistics(7).live, 0u);
}

TEST_F(torch, use_on_a_default_stream_is_recorded_while_another_device_is_current) {
  auto* const side = make_stream(12);
  auto* const block = gpumem_torch_allocate(mib, 12, side);
  gpumem_torch_record_stream(block, nullptr);
  bool done = false;
  simulator::work(cuda::stream_ref{CU_STREAM_LEGACY}, {simulator::write(block, mib)}, milliseconds{1},
                  [&] { done = true; });
  make_current(0);
  gpumem_torch_free(block, mib, 12, side);
  EXPECT_FALSE(done) << "the free has waited for the device";
  EXPECT_EQ(statistics(12).live, 0u);
  simulator::run_until_idle(); // while the memory that the work writes still exists
}

TEST_F(torch, misuse_is_reported_and_ignored) {
  auto* const stream = make_stream(10);
  auto* const block = allocate(mib, 10, stream);
  testing::internal::CaptureStderr();
  gpumem_torch_free(block, mib + 1, 10, stream);
  gpumem_torch_free(block, mib, 11, stream);
  gpumem_torch_free(block, mib, -1, stream);
  auto const told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("a free with another size than the allocation's"));
  EXPECT_THAT(told, HasSubstr("the device has no pool"));
  EXPECT_THAT(told, HasSubstr("there is no device -1"));
  EXPECT_EQ(statistics(10).live, mib);
  free(block, mib, 10, stream);
}

TEST_F(torch, hardened_pool_reports_what_it_finds) {
  auto* const stream = make_stream(0);
  gpumem_pool* pool = nullptr;
  EXPECT_EQ(gpumem_make_pool(0, "quarantine=1MiB", &pool), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("not hardened"));
  auto const options = "hardened=on,guard=512,quarantine=1MiB,poison=4KiB,history=100";
  ASSERT_EQ(gpumem_make_pool(0, options, &pool), GPUMEM_GRANTED) << gpumem_last_error();
  void* block = nullptr;
  ASSERT_EQ(gpumem_allocate_sync(pool, 1000, 256, &block), GPUMEM_GRANTED);
  ASSERT_EQ(gpumem_free(pool, stream, block), GPUMEM_GRANTED);
  EXPECT_EQ(gpumem_free(pool, stream, block), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("a double free"));
  EXPECT_THAT(gpumem_last_error(), HasSubstr("1000 bytes at"));
  gpumem_statistics told{};
  told.size = sizeof told;
  ASSERT_EQ(gpumem_read_statistics(pool, &told), GPUMEM_GRANTED);
  EXPECT_EQ(told.quarantined, 2048u);
  EXPECT_EQ(told.allocated, 2048u);
  gpumem::simulator::run_until_idle();
  static_cast<char*>(block)[1000] = 1; // behind the block
  testing::internal::CaptureStderr();
  std::atomic<bool> over{false};
  std::thread device{[&] {
    while (!over) gpumem::simulator::run_until_idle();
  }};
  EXPECT_EQ(gpumem_synchronize(pool, 1'000'000'000), GPUMEM_GRANTED);
  over = true;
  device.join();
  auto const text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("a write past the end of a block"));
  EXPECT_THAT(text, HasSubstr("freed on stream"));
  EXPECT_EQ(gpumem_release(pool), GPUMEM_GRANTED);
}

} // namespace
