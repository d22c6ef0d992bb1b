// Requests for several blocks: either all are granted or none.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;

class pool_acquire_all : public gpumem_test::waiting_fixture {
protected:
  // A request for two blocks on two streams.
  class pair {
  public:
    template <class Pool>
    pair(pool_acquire_all& of, Pool pool, std::size_t first, std::size_t second, std::stop_token token = {})
        : running_{test::start(run(of, pool, first, second, std::move(token)))} {}
    std::optional<outcome> ended() const { return ended_; }
    std::array<gpumem::allocation, 2>& blocks() { return blocks_; }

  private:
    template <class Pool>
    gpumem::task<> run(pool_acquire_all& of, Pool pool, std::size_t first, std::size_t second, std::stop_token token) {
      try {
        blocks_ = co_await pool.acquire_all({{of.a, first}, {of.b, second, 4096}}, {.resume_on = &of.executor}, token);
        ended_ = outcome::granted;
      } catch (gpumem::acquire_error const& e) { ended_ = e.reason(); } catch (gpumem::out_of_memory const& e) {
        ended_ = e.reason();
      }
    }
    std::array<gpumem::allocation, 2> blocks_;
    std::optional<outcome> ended_;
    test::started running_;
  };
};

TEST_F(pool_acquire_all, each_block_is_ordered_on_its_stream) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto blocks = pool.acquire_all({{a, 3 * MiB}, {b, 2 * MiB, 4096}, {a, 0}}).wait();
  EXPECT_EQ(blocks[0].bytes(), 3 * MiB);
  EXPECT_EQ(blocks[0].stream().get(), a.get());
  EXPECT_EQ(blocks[1].bytes(), 2 * MiB);
  EXPECT_EQ(blocks[1].stream().get(), b.get());
  EXPECT_EQ(blocks[1].address() % 4096, 0u);
  EXPECT_FALSE(blocks[2]);
  EXPECT_EQ(pool.statistics().live, 5 * MiB);
}

TEST_F(pool_acquire_all, waiting_request_holds_no_block) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  pair both{*this, pool, 30 * MiB, 30 * MiB};
  EXPECT_FALSE(both.ended());
  EXPECT_EQ(pool.statistics().live, 60 * MiB);
  EXPECT_EQ(pool.statistics().waiting_bytes, 60 * MiB);
  EXPECT_FALSE(pool.acquire_all({{a, MiB}, {b, 50 * MiB}}).try_now());
  EXPECT_EQ(pool.statistics().live, 60 * MiB) << "the first block was kept";
  block.reset();
  run_all();
  EXPECT_EQ(both.ended(), outcome::granted);
  EXPECT_EQ(pool.statistics().live, 60 * MiB);
  both.blocks()[1].reset();
  EXPECT_EQ(pool.statistics().live, 30 * MiB);
}

TEST_F(pool_acquire_all, waiting_request_counts_with_the_sum_of_its_bytes) {
  pool_resource pool{device, {.limit = 100 * MiB, .max_overtakes = 0}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  pair both{*this, pool, 30 * MiB, 30 * MiB};
  request second{*this, pool, b, 30 * MiB};
  run_all();
  EXPECT_FALSE(second.ended());
  block.reset();
  run_all();
  EXPECT_EQ(both.ended(), outcome::granted);
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_acquire_all, request_is_refused_at_once_if_its_sum_exceeds_the_limit) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  pair both{*this, pool, 60 * MiB, 60 * MiB};
  EXPECT_EQ(both.ended(), outcome::too_large);
  EXPECT_EQ(pool.acquire_all({{a, SIZE_MAX / 2}, {b, SIZE_MAX / 2}}).try_now().error().reason, outcome::too_large);
  EXPECT_EQ(pool.acquire_all({{a, MiB}, {b, MiB, 3}}).try_now().error().reason, outcome::invalid_argument);
  EXPECT_EQ(pool.statistics().live, 60 * MiB);
}

TEST_F(pool_acquire_all, partial_grant_is_returned_if_the_rest_is_fragmented) {
  pool_resource pool{device, {.initial_size = 8 * MiB, .limit = 8 * MiB, .pages = false}};
  std::vector<gpumem::allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.acquire(a, MiB).wait());
  pair first{*this, pool, MiB, 2 * MiB}, second{*this, pool, MiB, 2 * MiB};
  request third{*this, pool, b, MiB};
  for (auto const i : {0, 2}) blocks[i].reset();
  run_all();
  EXPECT_EQ(third.ended(), outcome::granted) << "three bytes are too much for the others";
  for (auto const i : {4, 6}) blocks[i].reset();
  run_all();
  EXPECT_FALSE(first.ended());
  EXPECT_FALSE(second.ended());
  EXPECT_EQ(pool.statistics().live, 5 * MiB);
  blocks[5].reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_FALSE(second.ended());
  for (auto& each : blocks) each.reset();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_acquire_all, blocks_given_back_do_not_hide_a_deadlock) {
  pool_resource pool{device, {.initial_size = 8 * MiB, .limit = 8 * MiB, .pages = false}};
  gpumem::scope work{pool, "work"};
  std::vector<gpumem::allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(work.acquire(a, MiB).wait());
  for (auto const i : {0, 2, 4, 6}) blocks[i].reset();
  pair both{*this, work, MiB, 2 * MiB};
  run_until([&] {
    gpumem::simulator::run_until_idle();
    return both.ended().has_value();
  });
  EXPECT_EQ(both.ended(), outcome::stalled) << "the work holds all memory, and waits";
}

TEST_F(pool_acquire_all, stopped_or_destroyed_request_leaves_no_block) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  std::stop_source source;
  pair stopped{*this, pool, 30 * MiB, 30 * MiB, source.get_token()};
  source.request_stop();
  run_all();
  EXPECT_EQ(stopped.ended(), outcome::stopped);
  {
    pair destroyed{*this, pool, 30 * MiB, 30 * MiB};
    block.reset();
  }
  EXPECT_EQ(pool.statistics().live, 0u);
  EXPECT_EQ(pool.statistics().waiting, 0u);
}

TEST_F(pool_acquire_all, resource_without_waiting_is_supported) {
  auto blocks = gpumem::acquire_all(upstream, {{a, MiB}, {b, MiB}}).wait();
  EXPECT_EQ(blocks[1].bytes(), MiB);
}

TEST_F(pool_acquire_all, adaptors_count_each_block) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  gpumem::statistics_adaptor counted{pool};
  auto block = pool.acquire(a, 60 * MiB).wait();
  pair both{*this, counted, 30 * MiB, 20 * MiB};
  EXPECT_EQ(counted.counters().allocations.value, 0);
  block.reset();
  run_all();
  EXPECT_EQ(both.ended(), outcome::granted);
  EXPECT_EQ(counted.counters().allocations.value, 2);
  EXPECT_EQ(counted.counters().bytes.value, static_cast<std::int64_t>(50 * MiB));
}

} // namespace
