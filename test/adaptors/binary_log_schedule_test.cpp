// Binary logs of threads under schedules. Each run can be replayed by its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/simulator.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

import gpumem;
#include "log_rows.hpp"
#include "memory_rows.hpp"

namespace {

constexpr std::size_t members = 3;
constexpr int calls = 30;

struct passed_block {
  void* pointer;
  std::size_t bytes;
};

// Blocks that one thread allocates and another may free.
class block_list {
public:
  void put(passed_block block) {
    gpumem::detail::sync::lock const held{mutex_};
    blocks_.push_back(block);
  }
  bool take(std::uint64_t which, passed_block& block) {
    gpumem::detail::sync::lock const held{mutex_};
    if (blocks_.empty()) return false;
    std::swap(blocks_[which % blocks_.size()], blocks_.back());
    block = blocks_.back();
    blocks_.pop_back();
    return true;
  }

private:
  gpumem::detail::sync::mutex mutex_;
  std::vector<passed_block> blocks_;
};

TEST(binary_log_schedule, rows_are_in_order_whatever_thread_runs) {
  test::schedule_seeds const seeds{400};
  gpumem::stream stream{gpumem::device{0}};
  std::size_t passed_between_threads = 0;
  seeds.each([&](std::uint64_t seed) {
    gpumem::simulator::seed(seed);
    std::ostringstream csv, text;
    gpumem::pool_resource pool{gpumem::device{0}, {.limit = 64 << 20}};
    gpumem::logging_adaptor inner{pool, csv};
    gpumem::logging_adaptor subject{inner, text, {.format = gpumem::log_format::binary, .auto_flush = seed % 5 == 0}};
    block_list blocks;
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < members; ++i) {
      bodies.emplace_back([&, i] {
        std::mt19937_64 random{seed * members + i};
        for (int call = 0; call < calls; ++call) {
          passed_block block{};
          if (random() % 2 && blocks.take(random(), block)) {
            subject.deallocate(stream, block.pointer, block.bytes);
          } else if (random() % 16 == 0) {
            EXPECT_FALSE(subject.try_allocate(stream, 65 << 20));
          } else {
            block = {.pointer = nullptr, .bytes = 1 + random() % 4096};
            block.pointer = subject.allocate(stream, block.bytes);
            blocks.put(block);
          }
          if (random() % 16 == 0) EXPECT_TRUE(subject.flush());
        }
      });
    }
    gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
    passed_block block{};
    while (blocks.take(0, block)) subject.deallocate(stream, block.pointer, block.bytes);
    ASSERT_TRUE(subject.flush() && inner.flush());
    test::expect_addresses_alternate(text.str());
    EXPECT_EQ(test::rows_by_thread(text.str()), test::rows_by_thread(csv.str()));
    std::map<std::uint64_t, std::uint64_t> freed_by;
    for (auto const& row : test::read_log(text.str())) {
      if (row.action == gpumem::extend::trace_action::free) {
        freed_by[row.pointer] = row.thread;
      } else if (auto const found = freed_by.find(row.pointer); found != freed_by.end()) {
        passed_between_threads += found->second != row.thread;
      }
    }
  });
  if (!seeds.alone()) EXPECT_GT(passed_between_threads, 100u);
}

// At each row the memory that the log shows holds the row's block, and at the end it is what the pool has.
TEST(pool_log_schedule, rows_show_the_memory_of_the_pool_whatever_thread_runs) {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  test::schedule_seeds const seeds{200};
  std::array<gpumem::stream, 2> streams{gpumem::stream{gpumem::device{0}}, gpumem::stream{gpumem::device{0}}};
  std::size_t moves = 0, unmaps = 0, waits = 0, refusals = 0;
  seeds.each([&](std::uint64_t seed) {
    gpumem::simulator::seed(seed);
    std::ostringstream text;
    gpumem::pool_resource pool{gpumem::device{0}, {.limit = 24 * MiB, .effort = 1, .pages = seed % 4 != 0}};
    auto* const before = pool.allocate(streams[0], 3 * MiB);
    gpumem::logging_adaptor subject{pool, text, {.format = gpumem::log_format::binary, .auto_flush = seed % 5 == 0}};
    block_list blocks;
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < members; ++i) {
      bodies.emplace_back([&, i] {
        std::mt19937_64 random{seed * members + i};
        for (int call = 0; call < calls; ++call) {
          auto const& stream = streams[random() % 2];
          passed_block block{};
          if (random() % 2 && blocks.take(random(), block)) {
            subject.deallocate(stream, block.pointer, block.bytes);
          } else if (random() % 16 == 0) {
            subject.trim();
          } else {
            block = {.pointer = nullptr, .bytes = random() % 2 ? 1 + random() % 4096 : 1 + random() % (6 * MiB)};
            auto const until = gpumem::detail::sync::now() + std::chrono::microseconds{20};
            try {
              block.pointer = gpumem::acquire(subject, stream, block.bytes, {.deadline = until}).wait().release();
              blocks.put(block);
            } catch (gpumem::acquire_error const&) {}
          }
        }
      });
    }
    gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
    passed_block block{};
    while (blocks.take(0, block)) subject.deallocate(streams[0], block.pointer, block.bytes);
    for (auto& each : streams) each.synchronize();
    subject.trim();
    test::mapped_memory mapped;
    std::vector<gpumem::extend::trace_record> rows;
    // The library thread may be about to give a chunk back.
    for (int attempt = 0; attempt < 1'000; ++attempt) {
      ASSERT_TRUE(subject.flush());
      mapped = {};
      rows = test::read_log(text.str());
      for (auto const& row : rows) mapped.apply(row);
      if (mapped.bytes() == pool.statistics().reserved) break;
      gpumem::detail::sync::sleep_for(std::chrono::microseconds{100});
    }
    EXPECT_EQ(mapped.bytes(), pool.statistics().reserved) << "seed " << seed;
    std::size_t waiting = 0, ended = 0;
    for (auto const& row : rows) {
      waiting += row.action == gpumem::extend::trace_action::wait;
      refusals += row.action == gpumem::extend::trace_action::refusal;
      ended += row.action == gpumem::extend::trace_action::refusal || row.served == gpumem::extend::served_by::turn;
    }
    EXPECT_EQ(waiting, ended) << "each request that waits is granted or refused";
    moves += mapped.moves();
    unmaps += mapped.unmaps();
    waits += waiting;
    pool.deallocate(streams[0], before, 3 * MiB);
    gpumem::simulator::take_findings(); // blocks pass between streams without an order
  });
  if (!seeds.alone()) {
    for (auto const count : {moves, unmaps, waits, refusals}) EXPECT_GT(count, 100u);
  }
}

} // namespace
