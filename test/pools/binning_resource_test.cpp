// Requests that go to the bin of their size.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory_resource>
#include <stdexcept>
#include <thread>
#include <vector>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

using namespace gpumem::literals;
using namespace std::chrono_literals;

class binning : public simulated {
protected:
  // All resources of a device share their statistics, and closed pools of earlier tests may still have memory.
  void SetUp() override {
    simulated::SetUp();
    gpumem::cuda_resource const shared{device_};
    for (int i = 0; i < 1000 && shared.statistics().live > 0; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(shared.statistics().live, 0u);
  }

  using counted = gpumem::statistics_adaptor<gpumem::cuda_resource>;
  gpumem::device const device_{0};
  gpumem::stream stream_{device_};
  counted upstream_{gpumem::cuda_resource{device_}};
  counted small_{gpumem::cuda_resource{device_}};
};

std::int64_t live(auto const& counted) { return counted.counters().allocations.value; }

TEST_F(binning, request_goes_to_the_smallest_bin_that_holds_it) {
  gpumem::binning_resource bins{upstream_};
  bins.add_bin(1_KiB, small_);
  bins.add_upstream_bin(4_KiB);
  EXPECT_EQ(bins.bin_sizes(), (std::vector<std::size_t>{1_KiB, 4_KiB}));
  for (std::size_t const bytes : {1ul, 1024ul}) {
    auto* const block = bins.allocate(stream_, bytes);
    EXPECT_EQ(live(small_), 1);
    EXPECT_EQ(small_.counters().bytes.value, static_cast<std::int64_t>(bytes)) << "the bin gets the requested bytes";
    bins.deallocate(stream_, block, bytes);
  }
  for (std::size_t const bytes : {1025ul, 4096ul, 4097ul, 1_MiB}) {
    auto* const block = bins.allocate(stream_, bytes);
    EXPECT_EQ(live(small_), 0);
    EXPECT_EQ(live(upstream_), 1);
    bins.deallocate(stream_, block, bytes);
  }
  EXPECT_EQ(live(small_) + live(upstream_), 0);
}

TEST_F(binning, exponents_make_bins_of_blocks_of_one_size) {
  gpumem::binning_resource bins{upstream_, {.min_exponent = 10, .max_exponent = 12, .blocks_per_chunk = 4}};
  EXPECT_EQ(bins.bin_sizes(), (std::vector<std::size_t>{1_KiB, 2_KiB, 4_KiB}));
  EXPECT_EQ(upstream_.counters().allocations.total, 0) << "nothing before the first request";
  auto* const block = bins.allocate(stream_, 1500);
  EXPECT_EQ(upstream_.counters().bytes.total, 8 << 10);
  EXPECT_EQ(bins.statistics().live, 1500u);
  EXPECT_EQ(bins.statistics().allocated, 2_KiB);
  EXPECT_EQ(bins.statistics().reserved, 8_KiB);
  bins.deallocate(stream_, block, 1500);
  ASSERT_EQ(bins.statistics().live, 0u);
  stream_.synchronize();
  auto* const large = bins.allocate(stream_, 5000);
  EXPECT_EQ(bins.statistics().live, 5000u);
  bins.deallocate(stream_, large, 5000);
}

TEST_F(binning, largest_exponents_do_not_overflow) {
  gpumem::binning_resource bins{gpumem::pool_resource{upstream_},
                                {.min_exponent = 31, .max_exponent = 33, .blocks_per_chunk = 1}};
  auto* const block = bins.allocate(stream_, 3_GiB);
  EXPECT_EQ(bins.statistics().allocated, 4_GiB);
  bins.deallocate(stream_, block, 3_GiB);
}

TEST_F(binning, bin_that_cannot_serve_its_size_is_refused) {
  gpumem::pool_resource pool{upstream_};
  gpumem::binning_resource bins{pool};
  gpumem::fixed_size_resource fixed{pool, {.block_size = 1_KiB}};
  EXPECT_THROW(bins.add_bin(256_KiB, fixed), std::invalid_argument);
  EXPECT_THROW(bins.add_bin(256_KiB, gpumem::statistics_adaptor{fixed}), std::invalid_argument) << "through an adaptor";
  EXPECT_THROW(bins.add_bin(256_KiB, gpumem::any_pool{fixed}), std::invalid_argument) << "through erasure";
  EXPECT_THROW(bins.add_bin(256_KiB, gpumem::pool_resource{upstream_, {.limit = 64_KiB}}), std::invalid_argument);
  bins.add_bin(1_KiB, fixed);
  EXPECT_THROW(bins.add_bin(1_KiB, fixed), std::invalid_argument) << "there is such a bin";
  EXPECT_THROW(bins.add_upstream_bin(0), std::invalid_argument);
  EXPECT_THROW(bins.add_upstream_bin(SIZE_MAX), std::invalid_argument);
  EXPECT_THROW(bins.add_fixed_bin(0), std::invalid_argument);
  EXPECT_EQ(bins.bin_sizes(), (std::vector<std::size_t>{1_KiB}));
}

// The compiler refuses this if the types are not erased.
TEST_F(binning, bin_must_be_accessible_where_the_upstream_is) {
  gpumem::any_pool const managed{gpumem::managed_resource{device_}}, plain{upstream_};
  gpumem::binning_resource bins{managed};
  EXPECT_THROW(bins.add_bin(1_KiB, plain), std::invalid_argument);
  bins.add_bin(1_KiB, managed);
  gpumem::binning_resource others{plain};
  others.add_bin(1_KiB, managed);
  EXPECT_EQ(others.bin_sizes(), (std::vector<std::size_t>{1_KiB}));
}

// A bin gives memory of one stream, so the chunk of a pool over it is valid only in the order of that stream.
TEST_F(binning, memory_of_bins_is_stream_ordered) {
  gpumem::binning_resource const bins{upstream_, {.min_exponent = 20, .max_exponent = 23}};
  gpumem::pool_resource pool{bins, {.chunk_size = 4_MiB}};
  gpumem::stream other{device_};
  gpumem::simulator::checked checked{bins};
  gpumem::simulator::checked above{pool};
  void* const used = checked.allocate(stream_, 4_MiB);
  gpumem::simulator::work(stream_, {gpumem::simulator::write(used, 4_MiB)}, 50us);
  checked.deallocate(stream_, used, 4_MiB);
  void* const mine = above.allocate(stream_, 1_MiB); // out of a chunk that the stream still uses
  void* const theirs = above.allocate(other, 1_MiB);
  gpumem::simulator::work(other, {gpumem::simulator::write(theirs, 1_MiB)}, 1us);
  above.deallocate(stream_, mine, 1_MiB);
  above.deallocate(other, theirs, 1_MiB);
}

TEST_F(binning, bin_added_later_leaves_live_blocks_to_their_owners) {
  gpumem::binning_resource bins{upstream_};
  auto* const before = bins.allocate(stream_, 100);
  bins.add_bin(1_KiB, small_);
  auto* const after = bins.allocate(stream_, 100);
  EXPECT_EQ(live(small_), 1);
  EXPECT_EQ(live(upstream_), 1);
  bins.deallocate(stream_, before, 100);
  EXPECT_EQ(live(upstream_), 0);
  bins.deallocate(stream_, after, 100);
  EXPECT_EQ(live(small_), 0);
  bins.add_fixed_bin(256, 2);
  auto* const fixed = bins.allocate(stream_, 100);
  EXPECT_EQ(live(small_), 0);
  bins.deallocate(stream_, fixed, 100);
}

TEST_F(binning, bins_can_be_added_while_threads_allocate) {
  gpumem::binning_resource bins{gpumem::pool_resource{upstream_}};
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> allocations{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      gpumem::stream own{device_};
      std::vector<std::pair<void*, std::size_t>> blocks;
      for (std::size_t i = 0; !stop || i < 100; ++i) {
        std::size_t const bytes = 1 + i * 997 % 10'000;
        blocks.emplace_back(bins.allocate(own, bytes), bytes);
        ++allocations;
        if (blocks.size() < 10) continue;
        bins.deallocate(own, blocks[i % 10].first, blocks[i % 10].second);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i % 10));
      }
      for (auto const& [p, bytes] : blocks) bins.deallocate(own, p, bytes);
    });
  }
  for (std::size_t size = 1_KiB; size <= 9_KiB; size += 1_KiB) {
    if (size % 2_KiB) {
      bins.add_fixed_bin(size, 16);
    } else {
      bins.add_bin(size, gpumem::pool_resource{small_});
    }
    for (auto const before = allocations.load(); allocations < before + 10;) std::this_thread::yield();
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(bins.statistics().live, 0u);
}

TEST_F(binning, request_waits_in_its_bin) {
  gpumem::binning_resource bins{upstream_};
  bins.add_bin(1_MiB, gpumem::pool_resource{small_, {.limit = 1_MiB}});
  gpumem::statistics_adaptor outer{bins};
  auto first = outer.acquire(stream_, 1_MiB).wait();
  gpumem::detail::sync::thread waiting{[&] {
    auto const second = outer.acquire(stream_, 500_KiB).wait();
    EXPECT_EQ(second.bytes(), 500_KiB);
  }};
  auto const large = outer.acquire(stream_, 2_MiB).wait();
  first.reset();
  waiting.join();
  EXPECT_EQ(outer.counters().bytes.value, static_cast<std::int64_t>(2_MiB));
}

TEST_F(binning, request_that_waits_in_a_late_bin_is_freed_there) {
  gpumem::binning_resource bins{gpumem::pool_resource{upstream_}};
  bins.deallocate(stream_, bins.allocate(stream_, 1), 1);
  bins.add_bin(1_MiB, gpumem::pool_resource{small_, {.limit = 1_MiB}});
  auto first = bins.acquire(stream_, 1_MiB).wait();
  for (int i = 0; i < 3; ++i) { // each waits in the bin, and is withdrawn
    auto const late = bins.acquire(stream_, 1_MiB).wait_until(gpumem::detail::sync::now() + 5ms);
    EXPECT_EQ(late.error().reason, gpumem::outcome::deadline);
  }
  gpumem::detail::sync::thread waiting{[&] { (void)bins.acquire(stream_, 1_MiB).wait(); }};
  first.reset();
  waiting.join();
  EXPECT_EQ(bins.statistics().live, 0u);
}

TEST_F(binning, several_blocks_come_from_several_bins) {
  gpumem::binning_resource bins{gpumem::pool_resource{upstream_}};
  bins.add_bin(1_KiB, gpumem::pool_resource{small_, {.limit = 1_MiB}});
  {
    auto const both = bins.acquire_all({{stream_, 100}, {stream_, 1_MiB}}).wait();
    EXPECT_EQ(bins.statistics().live, 100 + 1_MiB);
  }
  EXPECT_EQ(bins.statistics().live, 0u);
  EXPECT_FALSE(bins.acquire_all({{stream_, 100}, {stream_, 1_TiB}}).try_now());
  EXPECT_EQ(bins.statistics().live, 0u) << "all or none";
}

TEST_F(binning, trim_goes_through_all_bins) {
  gpumem::binning_resource bins{gpumem::pool_resource{upstream_},
                                {.min_exponent = 12, .max_exponent = 12, .blocks_per_chunk = 512}};
  bins.add_bin(8_KiB, gpumem::pool_resource{small_});
  bins.deallocate(stream_, bins.allocate(stream_, 4_KiB), 4_KiB);
  bins.deallocate(stream_, bins.allocate(stream_, 8_KiB), 8_KiB);
  stream_.synchronize();
  auto const held = bins.statistics().reserved;
  EXPECT_GE(held, 4_MiB);
  std::size_t given = 0;
  auto const latest = std::chrono::steady_clock::now() + std::chrono::seconds{10};
  while (given < held && std::chrono::steady_clock::now() < latest) given += bins.trim();
  EXPECT_EQ(given, held);
  EXPECT_EQ(bins.statistics().reserved, 0u);
}

TEST_F(binning, use_is_recorded_where_the_block_is) {
  gpumem::pool_resource pool{upstream_};
  gpumem::binning_resource bins{pool, {.min_exponent = 12, .max_exponent = 12}};
  gpumem::stream other{device_};
  auto* const small = bins.allocate(stream_, 100);
  auto* const large = bins.allocate(stream_, 1_MiB);
  bins.record_use(small, other);
  bins.record_use(large, other);
  int foreign = 0;
  EXPECT_THROW(bins.record_use(&foreign, other), std::invalid_argument);
  bins.deallocate(stream_, small, 100);
  bins.deallocate(stream_, large, 1_MiB);
}

TEST_F(binning, it_owns_its_bins) {
  std::optional<gpumem::allocation> block;
  {
    gpumem::binning_resource bins{gpumem::pool_resource{upstream_}};
    bins.add_bin(1_KiB, gpumem::pool_resource{small_});
    block.emplace(bins.acquire(stream_, 100).wait());
  }
  block.reset();
  EXPECT_EQ(live(upstream_), 0);
}

TEST_F(binning, scope_reaches_every_bin) {
  gpumem::pool_resource pool{upstream_};
  gpumem::binning_resource bins{pool};
  bins.add_bin(1_KiB, gpumem::pool_resource{small_, {.limit = 1_MiB}});
  gpumem::scope work{bins, "work"};
  auto const block = work.acquire(stream_, 100).wait();
  EXPECT_EQ(work.held(), 100u);
}

TEST_F(binning, bad_exponents_are_refused) {
  auto const make = [&](gpumem::binning_options options) {
    gpumem::binning_resource<gpumem::cuda_resource>{gpumem::cuda_resource{device_}, options};
  };
  EXPECT_THROW(make({.min_exponent = -1, .max_exponent = 3}), std::invalid_argument);
  EXPECT_THROW(make({.min_exponent = 3, .max_exponent = 63}), std::invalid_argument);
  EXPECT_THROW(make({.min_exponent = 3, .max_exponent = 4, .blocks_per_chunk = 0}), std::invalid_argument);
}

// The guide's example for PyTorch: 256 KiB requests must not go to blocks of 1 KiB.
TEST_F(binning, example_of_a_guide_is_refused_and_then_done_right) {
  gpumem::pool_resource pool{gpumem::managed_resource{device_}, {.initial_size = 1_MiB, .limit = 80_GiB}};
  gpumem::binning_resource bins{pool};
  EXPECT_THROW(bins.add_bin(256_KiB, gpumem::fixed_size_resource{pool, {.block_size = 1_KiB}}), std::invalid_argument);
  bins.add_fixed_bin(256_KiB);
  for (std::size_t const size : {512_KiB, 1_MiB, 2_MiB, 4_MiB}) bins.add_upstream_bin(size);
  auto* const block = bins.allocate(stream_, 100_KiB);
  bins.deallocate(stream_, block, 100_KiB);
}

} // namespace
