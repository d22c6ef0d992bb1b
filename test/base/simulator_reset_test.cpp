// Tests of one process that each begin with a reset of the simulated device: what gpumem keeps serves the next one.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

gpumem::task<> wait_for(gpumem::stream_ref stream) { co_await gpumem::completion(stream); }

// A fixture as users write it.
class fresh_device : public testing::Test {
protected:
  static void SetUpTestSuite() { simulator::load(); }
  void SetUp() override { begin(1); }
  void TearDown() override { EXPECT_NO_THROW(simulator::expect_silent()); }
  static void begin(std::uint64_t seed, int devices = 1) {
    simulator::reset({.devices = devices, .seed = seed, .name = "fresh_device"});
  }

  // Uses each kind of object that gpumem keeps beyond its users.
  template <class Pool> static void use(Pool pool) {
    gpumem::device const card{0};
    gpumem::device_guard const here{card};
    gpumem::stream first{card}, second{card};
    gpumem::event written{card};
    void* const block = pool.allocate(first, MiB);
    void* const by_default = gpumem::current_resource(card).allocate(first, MiB, 256);
    simulator::work(first, {simulator::write(block, MiB), simulator::write(by_default, MiB)}, 10us);
    written.record(first);
    written.make_wait(second);
    simulator::work(second, {simulator::read(block, MiB), simulator::read(by_default, MiB)}, 10us);
    pool.deallocate(second, block, MiB);
    gpumem::current_resource(card).deallocate(second, by_default, MiB, 256);
    void* const on_default = pool.allocate(CU_STREAM_PER_THREAD, MiB);
    pool.deallocate(CU_STREAM_PER_THREAD, on_default, MiB);
    gpumem::sync_wait(wait_for(second));
    EXPECT_TRUE(written.is_done());
  }
};

TEST_F(fresh_device, serves_each_test_of_a_process) {
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    begin(seed, seed % 2 == 0 ? 2 : 1);
    use(simulator::checked{gpumem::pool_resource{gpumem::device{0}}});
    use(simulator::checked{gpumem::async_resource{gpumem::device{0}}});
    use(simulator::checked{gpumem::pool_resource{gpumem::cuda_resource{gpumem::device{0}}}});
    EXPECT_NO_THROW(simulator::expect_silent());
  }
}

TEST_F(fresh_device, keeps_pools_and_streams_of_earlier_tests) {
  gpumem::device const card{0};
  simulator::checked pool{gpumem::pool_resource{card}};
  gpumem::stream kept{card};
  void* const block = pool.allocate(kept, MiB);
  simulator::work(kept, {simulator::write(block, MiB)}, 1s);
  begin(2);
  gpumem::stream other{card};
  simulator::work(other, {simulator::write(block, MiB)}); // the earlier work counts as complete
  other.synchronize();
  pool.deallocate(kept, block, MiB);
  void* const next = pool.allocate(other, MiB);
  pool.deallocate(other, next, MiB);
}

TEST_F(fresh_device, is_not_lost_after_a_sticky_error) {
  gpumem::device const card{0};
  gpumem::stream stream{card};
  simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THROW(stream.synchronize(), gpumem::cuda_error);
  EXPECT_TRUE(card.lost());
  begin(3);
  EXPECT_FALSE(card.lost());
  use(simulator::checked{gpumem::pool_resource{card}});
  simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THROW(stream.synchronize(), gpumem::cuda_error);
  EXPECT_TRUE(card.lost()) << "a later error counts again";
  begin(4);
}

} // namespace
