// Pools over pages in a process that may reserve fewer addresses than the device has memory.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20, GiB = 1024 * MiB;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

class pool_few_addresses : public gpumem_test::simulated_test {
protected:
  static constexpr std::size_t device_bytes_all = 64 * GiB;
  static void set_addresses(std::size_t bytes) {
    simulator::reset(
        {.devices = 2, .capacity = device_bytes_all, .mode = simulator::stepping::immediate, .addresses = bytes});
  }
  void SetUp() override { set_addresses(40 * GiB); }
  void TearDown() override {
    simulated_test::TearDown();
    EXPECT_EQ(device_bytes(), 0u);
    simulator::reset({.devices = 2, .mode = simulator::stepping::manual});
  }
  static auto& engine_of(pool& which) {
    return static_cast<gpumem::detail::pool_state*>(which.services().state)->engine();
  }
  // Allocates `count` blocks, then frees them; each request must be granted.
  void allocate_all(pool& from, int count, std::size_t bytes) {
    std::vector<void*> blocks;
    for (int i = 0; i < count; ++i) {
      auto const p = from.try_allocate(stream, bytes);
      EXPECT_TRUE(p) << i;
      if (p) blocks.push_back(*p);
    }
    auto const now = from.statistics();
    EXPECT_EQ(now.allocated + now.cached + now.free, now.reserved);
    EXPECT_EQ(now.reserved, device_bytes());
    EXPECT_TRUE(engine_of(from).is_consistent());
    for (auto* const each : blocks) from.deallocate(stream, each, bytes);
    stream.synchronize();
  }
  static std::string text_of_refusal(pool& from, gpumem::stream const& on, std::size_t bytes) {
    try {
      std::ignore = from.allocate(on, bytes);
    } catch (gpumem::out_of_memory const& e) { return e.what(); }
    return "no exception";
  }

  gpumem::device device{0};
  gpumem::stream stream{device};
};

TEST_F(pool_few_addresses, requests_up_to_the_device_are_granted) {
  pool r{device};
  allocate_all(r, 20, 3 * GiB);
  EXPECT_EQ(r.trim(), r.statistics().peak_reserved);
  allocate_all(r, 1, 60 * GiB);
  EXPECT_GE(r.trim(), 60 * GiB);
  EXPECT_EQ(device_bytes(), 0u);
}

TEST_F(pool_few_addresses, request_for_more_bytes_than_addresses_replaces_unused_pages) {
  pool r{device};
  allocate_all(r, 10, 3 * GiB);
  allocate_all(r, 1, 50 * GiB);
}

TEST_F(pool_few_addresses, limit_counts_chunks_and_pages) {
  pool r{device, {.limit = 50 * GiB}};
  allocate_all(r, 16, 3 * GiB);
  EXPECT_LE(r.statistics().peak_reserved, 50 * GiB);
  auto* const p = r.allocate(stream, 45 * GiB);
  EXPECT_THAT(text_of_refusal(r, stream, 10 * GiB), testing::HasSubstr("out of memory")) << "the limit is the cause";
  r.deallocate(stream, p, 45 * GiB);
}

TEST_F(pool_few_addresses, pool_without_any_address_gets_chunks) {
  set_addresses(1);
  pool r{device, {.initial_size = 8 * MiB, .limit = 64 * MiB}};
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  allocate_all(r, 20, 2 * MiB);
  auto* const p = r.allocate(stream, 3 * MiB);
  EXPECT_THROW(r.open_to(gpumem::device{1}), gpumem::cuda_error) << "only pages can be opened";
  EXPECT_FALSE(r.pin(p, 100 * MiB));
  EXPECT_TRUE(r.pin(p, 3 * MiB));
  r.deallocate(stream, p, 3 * MiB);
  stream.synchronize();
  r.trim();
  EXPECT_TRUE(r.find(p)) << "it is pinned";
  r.unpin(p, 3 * MiB);
  r.open_to(gpumem::device{1}); // gives the unused chunks back first
  EXPECT_FALSE(r.try_allocate(stream, 3 * MiB)) << "now it must get pages";
}

// A chunk need not have whole pages.
TEST_F(pool_few_addresses, pages_beside_chunks_stay_within_the_limit) {
  set_addresses(16 * MiB);
  pool r{device, {.limit = 8 * MiB}};
  {
    pool first{device};
    auto* const p = first.allocate(stream, MiB); // it reserves all addresses
    EXPECT_EQ(r.reserve(3 * MiB / 2), 3 * MiB / 2);
    first.deallocate(stream, p, MiB);
    stream.synchronize();
    first.trim();
  }
  ASSERT_EQ(simulator::report().bytes_reserved, 0u) << "the other pool has gone";
  EXPECT_EQ(r.reserve(8 * MiB), 6 * MiB);
  EXPECT_GT(simulator::report().mappings, 0u);
  EXPECT_LE(r.statistics().peak_reserved, 8 * MiB);
}

TEST_F(pool_few_addresses, threads_with_shards_share_what_there_is) {
  set_addresses(512 * MiB);
  pool r{device, {.shard_per_thread = true}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      gpumem::device_guard const here{device};
      gpumem::stream own{device};
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::pair<void*, std::size_t>> blocks(16);
      for (int i = 0; i < 300; ++i) {
        auto& [p, bytes] = blocks[random() % blocks.size()];
        if (p) r.deallocate(own, p, bytes);
        bytes = (1 + random() % 64) * MiB;
        p = r.allocate(own, bytes);
      }
      for (auto const& [p, bytes] : blocks) {
        if (p) r.deallocate(own, p, bytes);
      }
      own.synchronize();
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_TRUE(engine_of(r).is_consistent());
  EXPECT_EQ(r.statistics().live, 0u);
  r.trim();
  EXPECT_EQ(device_bytes(), 0u);
}

TEST_F(pool_few_addresses, failure_names_addresses_and_what_to_do) {
  pool r{device, {.name = "mine"}, {.exportable = true}}; // chunks cannot be exported
  auto const failed = r.try_allocate(stream, 50 * GiB);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error(), (gpumem::failure{gpumem::outcome::exhausted, -2, 50 * GiB}));
  auto const text = text_of_refusal(r, stream, 50 * GiB);
  EXPECT_THAT(text, testing::StartsWith("gpumem: out of addresses (exhausted) in 'mine': requested 50.0 GiB, "));
  EXPECT_THAT(text, testing::HasSubstr("raise `ulimit -v`"));
  auto* const most = r.allocate(stream, 35 * GiB);
  EXPECT_THAT(text_of_refusal(r, stream, 30 * GiB), testing::HasSubstr("out of memory"))
      << "the device has no memory for it either";
  r.deallocate(stream, most, 35 * GiB);
}

TEST_F(pool_few_addresses, failure_names_addresses_where_chunks_are_refused_too) {
  set_addresses(1);
  pool r{device};
  for (int i = 1; i <= 8; ++i) simulator::fail_call("cuMemAlloc", i, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(text_of_refusal(r, stream, 3 * MiB), testing::HasSubstr("out of addresses"));
}

TEST_F(pool_few_addresses, option_address_space_beyond_those_is_refused_with_a_reason) {
  try {
    pool r{device, {}, {.address_space = 50 * GiB}};
    FAIL() << "it was made";
  } catch (gpumem::cuda_error const& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("no 50.0 GiB of addresses left; lower the option address_space"));
  }
  pool bounded{device, {}, {.address_space = GiB}};
  auto* const p = bounded.allocate(stream, 900 * MiB);
  EXPECT_THAT(text_of_refusal(bounded, stream, 900 * MiB), testing::HasSubstr("out of addresses"));
  bounded.deallocate(stream, p, 900 * MiB);
}

} // namespace
