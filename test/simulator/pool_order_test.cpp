// The order of memory from a driver pool: correct programs have no findings, planted misuse is found.
// SPDX-License-Identifier: Apache-2.0
#include "support/naive_pool.hpp"
#include "support/pools.hpp"

#include <random>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using simulator::finding_kind;
using simulator::read;
using simulator::write;

class driver_pool_order : public simulated_pools {
protected:
  void SetUp() override {
    simulated_pools::SetUp();
    a_ = new_stream();
    b_ = new_stream();
  }

  CUmemoryPool pool_ = nullptr;
  CUstream a_ = nullptr;
  CUstream b_ = nullptr;
};

TEST_F(driver_pool_order, memory_belongs_to_the_stream_that_allocated_it) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, 64);
  simulator::work(a_, {write(memory, 64)}, 1us);
  order(a_, b_);
  simulator::work(b_, {write(memory, 64)}, 1us);
  order(b_, a_);
  EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
}

TEST_F(driver_pool_order, unordered_use_after_the_allocation_is_found) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, 64);
  simulator::work(b_, {read(memory, 64)}, 1us);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_access);
  EXPECT_EQ(found.earlier.stream, id_of(a_));
  EXPECT_EQ(found.later.stream, id_of(b_));
}

TEST_F(driver_pool_order, use_that_is_not_before_the_free_is_found) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, 64);
  order(a_, b_);
  simulator::work(b_, {write(memory, 64)}, 1us);
  EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_free);
}

TEST_F(driver_pool_order, use_after_the_free_is_found_on_the_same_stream_too) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, 64);
  EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
  simulator::work(a_, {write(memory, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::use_after_free);
}

TEST_F(driver_pool_order, second_free_is_found_and_refused) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, 64);
  EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
  EXPECT_EQ(free(memory, a_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(only_finding().kind, finding_kind::double_free);
  EXPECT_EQ(cu().free(address(memory)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(only_finding().kind, finding_kind::double_free);
}

TEST_F(driver_pool_order, free_of_other_memory_is_found_and_refused) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, 1024);
  EXPECT_EQ(free(memory + 512, a_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(only_finding().kind, finding_kind::unknown_free);
  char* plain = new_memory(64);
  EXPECT_EQ(free(plain, a_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(only_finding().kind, finding_kind::unknown_free);
  EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
}

TEST_F(driver_pool_order, access_beside_a_block_is_found) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, 100);
  simulator::work(a_, {write(memory, 101)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unallocated_access);
  EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
}

TEST_F(driver_pool_order, free_by_the_host_before_it_has_seen_completion_is_found) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, 64);
  EXPECT_EQ(cu().stream_synchronize(a_), CUDA_SUCCESS);
  EXPECT_EQ(cu().free(address(memory)), CUDA_SUCCESS);
  EXPECT_EQ(allocate(pool_, b_, 64), memory) << "any stream may reuse memory that the host freed";
  EXPECT_EQ(cu().free(address(memory)), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_free);
  EXPECT_EQ(simulator::report().implicit_synchronizations, 0u);
}

TEST_F(driver_pool_order, block_freed_before_its_sub_blocks_is_found) {
  pool_ = keeping_pool();
  char* chunk = allocate(pool_, a_, 4096);
  naive_pool inner(chunk, 4096);
  simulator::checked checked(inner);
  void* block = checked.allocate(a_, 256);
  EXPECT_EQ(free(chunk, a_), CUDA_SUCCESS);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::live_block_in_freed_memory);
  EXPECT_EQ(found.block_address, address(block));
}

TEST_F(driver_pool_order, stream_reuses_its_own_memory_at_once) {
  pool_ = keeping_pool(chunk);
  char* memory = allocate(pool_, a_, chunk);
  simulator::work(a_, {write(memory, 64)}, 1us);
  EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
  EXPECT_EQ(allocate(pool_, a_, chunk), memory);
  simulator::work(a_, {write(memory, 64)}, 1us);
}

/// With only one of the three reuse policies on: whether the second stream gets the memory of the first.
struct policies {
  int events;
  int completed;
  int waits;
};

class reuse : public driver_pool_order {
protected:
  char* reused(policies with, bool after_event, bool complete) {
    pool_ = keeping_pool(chunk);
    set(pool_, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, with.events);
    set(pool_, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, with.completed);
    set(pool_, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, with.waits);
    char* memory = allocate(pool_, a_, chunk);
    simulator::work(a_, {write(memory, 64)}, 1us);
    EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
    if (after_event) order(a_, b_);
    if (complete) simulator::run_until_idle();
    char* again = allocate(pool_, b_, chunk);
    if (again != nullptr) simulator::work(b_, {write(again, 64)}, 1us);
    return again;
  }
};

TEST_F(reuse, memory_is_reused_after_an_event) {
  EXPECT_EQ(reused({1, 0, 0}, false, false), nullptr);
  EXPECT_NE(reused({1, 0, 0}, true, false), nullptr);
}

TEST_F(reuse, complete_memory_is_reused) {
  EXPECT_EQ(reused({0, 1, 0}, true, false), nullptr);
  EXPECT_NE(reused({0, 1, 0}, false, true), nullptr);
}

TEST_F(reuse, memory_is_reused_after_a_wait_that_the_driver_inserts) {
  EXPECT_EQ(reused({0, 0, 0}, true, true), nullptr);
  EXPECT_NE(reused({0, 0, 1}, false, false), nullptr);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
}

TEST_F(reuse, reuse_with_a_wait_comes_after_growth) {
  pool_ = keeping_pool();
  char* memory = allocate(pool_, a_, chunk);
  EXPECT_EQ(free(memory, a_), CUDA_SUCCESS);
  EXPECT_NE(allocate(pool_, b_, chunk), memory);
  EXPECT_EQ(reserved(pool_), 2 * chunk);
}

TEST_F(reuse, inserted_wait_delays_the_allocation) {
  char* memory = reused({0, 0, 1}, false, false);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(cu().stream_synchronize(b_), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_query(a_), CUDA_SUCCESS) << "the second stream went before the first";
}

/// Random programs over one small pool: the simulated driver's own reuse is never a finding.
class random_pool : public simulated_pools {
protected:
  random_pool() : simulated_pools(simulator::options{}) {}

  void play(std::uint64_t seed) {
    std::mt19937_64 chance(seed);
    CUmemoryPool const pool = keeping_pool(chunk);
    CUstream const streams[] = {new_stream(), new_stream(), new_stream(CU_STREAM_DEFAULT), CU_STREAM_LEGACY};
    struct block {
      char* memory;
      std::size_t bytes;
      CUstream on;
    };
    std::vector<block> live;
    for (int i = 0; i < 300; ++i) {
      CUstream const on = streams[chance() % 4];
      auto const dice = chance() % 16;
      if (dice == 0) {
        cu().stream_synchronize(on);
      } else if (dice == 1) {
        order(on, streams[chance() % 4]);
      } else if (dice < 9) {
        std::size_t const bytes = 1 + chance() % (4 * mib);
        char* memory = allocate(pool, on, bytes);
        if (memory == nullptr) continue;
        simulator::work(on, {write(memory, bytes)}, 1us);
        live.push_back({memory, bytes, on});
      } else if (!live.empty()) {
        std::swap(live[chance() % live.size()], live.back());
        EXPECT_EQ(free(live.back().memory, live.back().on), CUDA_SUCCESS);
        live.pop_back();
      }
    }
    for (block const& last : live) EXPECT_EQ(free(last.memory, last.on), CUDA_SUCCESS);
    for (CUstream const each : streams) EXPECT_EQ(cu().stream_synchronize(each), CUDA_SUCCESS);
    EXPECT_EQ(cu().pool_destroy(pool), CUDA_SUCCESS);
    EXPECT_EQ(simulator::run_until_idle(), 0u);
    EXPECT_EQ(simulator::report().bytes_allocated, 0u);
  }
};

TEST_F(random_pool, correct_programs_have_no_findings) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    play(seed);
    ASSERT_TRUE(simulator::report().findings.empty());
  }
}

} // namespace
