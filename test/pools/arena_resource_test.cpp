// Arenas of threads, and the report of which stream holds the memory.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

import gpumem;

namespace {

using namespace gpumem::literals;

class arena : public simulated {
protected:
  gpumem::device const device_{0};
  gpumem::stream stream_{device_};
  gpumem::statistics_adaptor<gpumem::cuda_resource> upstream_{gpumem::cuda_resource{device_}};
};

TEST_F(arena, each_thread_gets_an_arena_of_its_own) {
  gpumem::arena_resource pool{upstream_, {.arena_size = 2_MiB}};
  std::barrier all{3};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      gpumem::stream own{device_};
      auto* const block = pool.allocate(own, 100);
      all.arrive_and_wait();
      pool.deallocate(own, block, 100);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.statistics().reserved, 6_MiB);
}

TEST_F(arena, arenas_are_added_up_to_the_maximum) {
  gpumem::arena_resource pool{upstream_, {.arena_size = 1_MiB, .max_arenas = 2}};
  EXPECT_EQ(pool.arena_size(), 1_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(stream_, 256_KiB));
  EXPECT_EQ(pool.statistics().reserved, 2_MiB);
  EXPECT_EQ(pool.try_allocate(stream_, 256_KiB).error().reason, gpumem::outcome::exhausted);
  EXPECT_EQ(pool.try_allocate(stream_, 3_MiB).error().reason, gpumem::outcome::too_large);
  for (auto* const each : blocks) pool.deallocate(stream_, each, 256_KiB);
}

TEST_F(arena, block_larger_than_an_arena_is_served) {
  gpumem::arena_resource pool{upstream_, {.arena_size = 1_MiB}};
  auto* const block = pool.allocate(stream_, 10_MiB);
  EXPECT_EQ(pool.statistics().reserved, 10_MiB);
  pool.deallocate(stream_, block, 10_MiB);
}

TEST_F(arena, thread_takes_free_memory_of_other_threads_before_it_fails) {
  gpumem::arena_resource pool{upstream_, {.arena_size = 1_MiB, .max_arenas = 1}};
  auto* const block = pool.allocate(stream_, 1_KiB);
  std::thread{[&] {
    gpumem::stream own{device_};
    auto* const taken = pool.allocate(own, 512_KiB);
    pool.deallocate(own, taken, 512_KiB);
  }}.join();
  pool.deallocate(stream_, block, 1_KiB);
}

TEST_F(arena, trim_gives_back_free_arenas) {
  gpumem::arena_resource pool{upstream_, {.arena_size = 1_MiB}};
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate(stream_, 1_MiB));
  for (auto* const each : blocks) pool.deallocate(stream_, each, 1_MiB);
  ASSERT_TRUE(pool.synchronize(std::chrono::seconds{10}));
  EXPECT_EQ(pool.trim(1_MiB), 3_MiB);
  EXPECT_EQ(pool.statistics().reserved, 1_MiB);
}

// Frees on another thread than the allocation's, in both directions.
TEST_F(arena, memory_is_freed_by_any_thread) {
  gpumem::simulator::checked pool{gpumem::arena_resource{upstream_, {.arena_size = 1_MiB}}};
  std::vector<void*> blocks(100);
  for (auto& each : blocks) each = pool.allocate_sync(4_KiB);
  std::thread{[&] {
    for (auto& each : blocks) {
      pool.deallocate_sync(each, 4_KiB);
      each = pool.allocate_sync(4_KiB);
    }
  }}.join();
  for (auto* const each : blocks) pool.deallocate_sync(each, 4_KiB);
}

TEST_F(arena, description_tells_which_stream_holds_what) {
  gpumem::arena_resource pool{upstream_, {.arena_size = 1_MiB, .max_arenas = 4}};
  gpumem::stream other{device_};
  auto* const small = pool.allocate(stream_, 1_KiB);
  auto* const more = pool.allocate(stream_, 900);
  auto* const large = pool.allocate(other, 256_KiB);
  auto const text = pool.describe_memory();
  auto const id = [](gpumem::stream const& of) { return std::to_string(of.key().identity().id()); };
  EXPECT_THAT(text, testing::StartsWith("gpumem: arena has reserved 1.0 MiB of at most 4.0 MiB: live 3 blocks, "));
  EXPECT_THAT(text,
              testing::HasSubstr("  live of stream " + id(stream_) + ": 2 blocks, 2.0 KiB, each of up to 1.0 KiB\n"));
  EXPECT_THAT(text,
              testing::HasSubstr("  live of stream " + id(other) + ": 1 block, 256.0 KiB, each of up to 256.0 KiB\n"));
  EXPECT_THAT(text, testing::HasSubstr("  free: "));
  pool.deallocate(stream_, small, 1_KiB);
  EXPECT_THAT(pool.describe_memory(), testing::HasSubstr("cached"));
  pool.deallocate(stream_, more, 900);
  pool.deallocate(other, large, 256_KiB);
}

TEST_F(arena, failure_is_reported_to_a_file) {
  auto const path = std::filesystem::temp_directory_path() / ("arena_report_" + std::to_string(getpid()));
  gpumem::arena_resource pool{upstream_,
                              {.arena_size = 1_MiB, .max_arenas = 1, .pool = {.failure_report = path.string()}}};
  auto* const block = pool.allocate(stream_, 768_KiB);
  EXPECT_FALSE(std::filesystem::exists(path)) << "no request has failed";
  EXPECT_FALSE(pool.try_allocate(stream_, 512_KiB));
  std::ifstream file{path};
  std::string const text{std::istreambuf_iterator<char>{file}, {}};
  EXPECT_THAT(text,
              testing::StartsWith("gpumem: a request for 512.0 KiB failed: exhausted\ngpumem: pool has reserved"));
  EXPECT_THAT(text, testing::HasSubstr(std::to_string(stream_.key().identity().id()) + ": 1 block, 768.0 KiB"));
  pool.deallocate(stream_, block, 768_KiB);
  std::filesystem::remove(path);
}

TEST_F(arena, report_that_cannot_be_written_changes_nothing) {
  gpumem::arena_resource pool{
      upstream_, {.arena_size = 1_MiB, .max_arenas = 1, .pool = {.failure_report = "/no/such/folder/report"}}};
  auto* const block = pool.allocate(stream_, 768_KiB);
  EXPECT_EQ(pool.try_allocate(stream_, 512_KiB).error().reason, gpumem::outcome::exhausted);
  pool.deallocate(stream_, block, 768_KiB);
}

TEST_F(arena, bad_options_are_refused) {
  auto const make = [&](gpumem::arena_options options) {
    gpumem::arena_resource<gpumem::cuda_resource>{gpumem::cuda_resource{device_}, std::move(options)};
  };
  EXPECT_THROW(make({.arena_size = 256}), std::invalid_argument);
  EXPECT_THROW(make({.arena_size = 1_MiB, .max_arenas = SIZE_MAX / 2}), std::invalid_argument);
  EXPECT_THROW(make({.max_arenas = 2, .pool = {.limit = 1_GiB}}), std::invalid_argument);
  EXPECT_THROW(make({.pool = {.chunk_size = 1_MiB}}), std::invalid_argument);
  EXPECT_THROW(make({.pool = {.shard_per_thread = true}}), std::invalid_argument);
  EXPECT_THROW(make({.arena_size = 2_MiB, .pool = {.limit = 1_MiB}}), std::invalid_argument);
}

} // namespace
