// Binary logs over pools: how each allocation was served, the pool's memory, waits, and logs that keep the last rows.
// SPDX-License-Identifier: Apache-2.0
#include "../support/failing_new.hpp"
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "log_rows.hpp"
#include "memory_rows.hpp"

namespace {

using gpumem::logging_adaptor;
using gpumem::extend::served_by;
using gpumem::extend::trace_action;
using gpumem::extend::trace_record;
using enum trace_action;

constexpr gpumem::logging_options binary{.format = gpumem::log_format::binary};
constexpr std::size_t MiB = std::size_t{1} << 20;

class pool_log : public simulated {
protected:
  static std::vector<trace_action> actions_in(std::ostringstream const& text) {
    std::vector<trace_action> actions;
    for (auto const& row : test::read_log(text.str())) actions.push_back(row.action);
    return actions;
  }
  static std::map<served_by, std::uint64_t> served_in(std::ostringstream const& text) {
    std::map<served_by, std::uint64_t> served;
    for (auto const& row : test::read_log(text.str())) served[row.served] += row.action == allocate;
    return served;
  }

  gpumem::device device{0};
  gpumem::stream a{device}, b{device};
  std::ostringstream text;
};

TEST_F(pool_log, rows_say_how_each_allocation_was_served) {
  std::map<served_by, std::uint64_t> seen;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    std::ostringstream log;
    gpumem::pool_resource pool{device, {.limit = 24 * MiB}};
    logging_adaptor subject{pool, log, binary};
    std::mt19937_64 random{seed};
    std::vector<std::pair<void*, std::size_t>> live;
    for (int call = 0; call < 2'000; ++call) {
      auto const& stream = random() % 2 ? a : b;
      if (random() % 8 == 0) random() % 2 ? a.wait(b) : b.wait(a);
      if (random() % 16 == 0) gpumem::simulator::run_until_idle();
      if (!live.empty() && random() % 2) {
        auto const at = random() % live.size();
        gpumem::simulator::work(stream, {gpumem::simulator::write(live[at].first, 1)});
        subject.deallocate(stream, live[at].first, live[at].second);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        auto const bytes = random() % 4 ? 1 + random() % 4096 : 1 + random() % (8 * MiB);
        auto const got = subject.try_allocate(stream, bytes);
        if (got) live.emplace_back(*got, bytes);
      }
    }
    auto const counted = pool.statistics();
    for (auto const& [block, bytes] : live) subject.deallocate(a, block, bytes);
    a.synchronize();
    b.synchronize();
    ASSERT_TRUE(subject.flush());
    auto const served = served_in(log);
    auto const rows = [&](served_by how) { return served.contains(how) ? served.at(how) : 0; };
    EXPECT_EQ(rows(served_by::unknown), 0u);
    EXPECT_EQ(rows(served_by::thread_cache), counted.reuse_thread_cache);
    EXPECT_EQ(rows(served_by::same_stream), counted.reuse_same_stream - counted.reuse_thread_cache);
    EXPECT_EQ(rows(served_by::ordered), counted.reuse_ordered);
    EXPECT_EQ(rows(served_by::completed), counted.reuse_completed);
    EXPECT_EQ(rows(served_by::stream_wait), counted.reuse_waited);
    EXPECT_EQ(rows(served_by::turn), 0u);
    for (auto const& [how, count] : served) seen[how] += count;
    gpumem::simulator::take_findings(); // frees on another stream have no order here
  }
  for (auto const how : {served_by::thread_cache, served_by::same_stream, served_by::ordered, served_by::completed,
                         served_by::stream_wait, served_by::new_memory})
    EXPECT_GT(seen[how], 0u) << static_cast<int>(how);
}

TEST_F(pool_log, resource_that_is_no_pool_has_rows_of_calls_alone) {
  std::ostringstream passed;
  {
    logging_adaptor plain{gpumem::cuda_resource{}, text, binary};
    plain.deallocate_sync(plain.allocate_sync(100), 100);
    logging_adaptor through{gpumem::pool_resource{device, {.pass_through = true}}, passed, binary};
    through.deallocate_sync(through.allocate_sync(100), 100);
  }
  EXPECT_EQ(actions_in(text), (std::vector{allocate, free}));
  EXPECT_EQ(actions_in(passed), (std::vector{allocate, free}));
  EXPECT_EQ(served_in(text)[served_by::unknown], 1u);
  EXPECT_EQ(served_in(passed)[served_by::unknown], 1u);
}

TEST_F(pool_log, memory_that_the_pool_has_gets_and_gives_back_has_rows) {
  for (bool const pages : {true, false}) {
    std::ostringstream log;
    gpumem::pool_resource pool{device, {.pages = pages}};
    auto* const before = pool.allocate(a, 6 * MiB);
    logging_adaptor subject{pool, log, binary};
    auto* const block = subject.allocate(a, 40 * MiB);
    subject.deallocate(a, block, 40 * MiB);
    a.synchronize();
    subject.trim();
    ASSERT_TRUE(subject.flush());
    test::mapped_memory mapped;
    mapped.apply(log.str());
    EXPECT_TRUE(mapped.contains(reinterpret_cast<std::uintptr_t>(before), 6 * MiB));
    EXPECT_EQ(mapped.bytes(), pool.statistics().reserved) << pages;
    EXPECT_GT(mapped.unmaps(), 0u);
    pool.deallocate(a, before, 6 * MiB);
  }
}

// Every second block is free, and a request for all of these bytes moves their pages together.
TEST_F(pool_log, pages_that_move_have_rows) {
  gpumem::pool_resource pool{device, {.effort = 1}};
  logging_adaptor subject{pool, text, binary};
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(subject.allocate(a, 4 * MiB));
  for (std::size_t i = 1; i < blocks.size(); i += 2) subject.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  auto* const large = subject.allocate(a, 12 * MiB);
  ASSERT_TRUE(subject.flush());
  test::mapped_memory mapped;
  mapped.apply(text.str());
  EXPECT_GE(mapped.moves(), 2u);
  EXPECT_EQ(mapped.bytes(), pool.statistics().reserved);
  subject.deallocate(a, large, 12 * MiB);
  for (std::size_t i = 0; i < blocks.size(); i += 2) subject.deallocate(a, blocks[i], 4 * MiB);
}

TEST_F(pool_log, pool_that_outlives_its_log_tells_nothing) {
  gpumem::pool_resource pool{device};
  {
    logging_adaptor subject{pool, text, binary};
    logging_adaptor other{pool, text, {.format = gpumem::log_format::csv}};
  }
  auto const size = text.str().size();
  pool.deallocate(a, pool.allocate(a, 64 * MiB), 64 * MiB);
  EXPECT_EQ(text.str().size(), size);
}

TEST_F(pool_log, each_log_of_a_pool_shows_its_memory) {
  std::ostringstream second;
  gpumem::pool_resource pool{device};
  {
    logging_adaptor one{pool, text, binary};
    logging_adaptor other{gpumem::statistics_adaptor{pool}, second, binary};
    one.deallocate(a, one.allocate(a, 8 * MiB), 8 * MiB);
  }
  EXPECT_EQ(actions_in(text), (std::vector{map, allocate, free}));
  EXPECT_EQ(actions_in(second), (std::vector{map}));
}

TEST_F(pool_log, bins_show_the_memory_of_their_pools) {
  gpumem::binning_resource bins{gpumem::pool_resource{device},
                                {.min_exponent = 20, .max_exponent = 20, .blocks_per_chunk = 4}};
  {
    logging_adaptor subject{bins, text, binary};
    for (auto const bytes : {MiB, 5 * MiB}) subject.deallocate(a, subject.allocate(a, bytes), bytes);
  }
  test::mapped_memory mapped;
  mapped.apply(text.str());
  EXPECT_GT(mapped.bytes(), 0u);
}

TEST_F(pool_log, request_that_waits_says_how_it_ends) {
  using namespace std::chrono_literals;
  {
    logging_adaptor subject{gpumem::pool_resource{device, {.limit = 4 * MiB}}, text, binary};
    auto block = gpumem::acquire(subject, a, 3 * MiB).wait();
    EXPECT_THROW(
        (void)gpumem::acquire(subject, b, 3 * MiB, {.deadline = std::chrono::steady_clock::now() + 1ms}).wait(),
        gpumem::acquire_error);
    std::thread waiting{[&] { EXPECT_EQ(gpumem::acquire(subject, b, 3 * MiB).wait().bytes(), 3 * MiB); }};
    while (subject.statistics().waiting == 0) std::this_thread::yield();
    block.reset();
    waiting.join();
  }
  EXPECT_EQ(actions_in(text), (std::vector{map, allocate, allocate_failure, wait, refusal, allocate_failure, wait, free,
                                           allocate, free}));
  EXPECT_EQ(served_in(text)[served_by::turn], 1u);
}

// Each block of the request has rows of its own, so that each row of a wait has one that ends it.
TEST_F(pool_log, request_for_several_blocks_waits_for_each) {
  using namespace std::chrono_literals;
  {
    logging_adaptor subject{gpumem::pool_resource{device, {.limit = 8 * MiB}}, text, binary};
    auto block = gpumem::acquire(subject, a, 7 * MiB).wait();
    gpumem::block_request const blocks[]{{a, MiB}, {a, 0}, {b, 2 * MiB}};
    auto const soon = std::chrono::steady_clock::now() + 1ms;
    EXPECT_THROW((void)gpumem::acquire_all(subject, blocks, {.deadline = soon}).wait(), gpumem::acquire_error);
    std::thread waiting{[&] { (void)gpumem::acquire_all(subject, blocks).wait(); }};
    while (subject.statistics().waiting == 0) std::this_thread::yield();
    block.reset();
    waiting.join();
  }
  std::multiset<std::pair<std::uint64_t, std::uint64_t>> waits; // streams and bytes
  std::size_t granted = 0, refused = 0;
  for (auto const& row : test::read_log(text.str())) {
    if (row.action == wait) waits.emplace(row.stream, row.bytes);
    if (row.action != refusal && row.served != served_by::turn) continue;
    auto const begun = waits.find({row.stream, row.bytes});
    ASSERT_NE(begun, waits.end());
    waits.erase(begun);
    ++(row.action == refusal ? refused : granted);
  }
  EXPECT_TRUE(waits.empty());
  EXPECT_EQ(granted, 2u);
  EXPECT_EQ(refused, 2u);
}

// Returns the action and the label of each row that has a label or takes one away.
std::vector<std::pair<trace_action, std::string>> labels_in(std::string text) {
  gpumem::extend::trace_reader reader{std::move(text), "log"};
  std::vector<std::pair<trace_action, std::string>> labels;
  for (auto const& row : reader.read_all()) {
    if (row.label != 0 || row.action == label) labels.emplace_back(row.action, reader.label_text(row.label));
  }
  return labels;
}

TEST_F(pool_log, blocks_have_the_labels_of_scopes_requests_and_calls) {
  gpumem::pool_resource pool{device, {.limit = 64 * MiB}};
  std::string const longer(100, 'n');
  {
    logging_adaptor subject{pool, text, binary};
    gpumem::scope outer{subject, "query"};
    {
      gpumem::scope inner{outer, "join"};
      auto const one = inner.acquire(a, 1000).wait();
      auto const two = inner.acquire(a, 1000, {.label = "hash table"}).wait();
    }
    auto const three = outer.acquire(a, 1000).wait();
    EXPECT_TRUE(pool.set_label(three.data(), "not told"));
    auto const from = gpumem::extend::services_of(subject);
    auto const name = [&](std::string const& name) {
      return from.table->set_label(from.state, three.data(), gpumem::detail::label_number(name));
    };
    EXPECT_TRUE(name(longer));
    EXPECT_TRUE(name("query"));
    EXPECT_TRUE(name(""));
    auto const plain = gpumem::acquire(subject, a, 1000).wait();
    EXPECT_FALSE(from.table->set_label(from.state, &plain, gpumem::detail::label_number("lost")));
  }
  EXPECT_EQ(labels_in(text.str()), (std::vector<std::pair<trace_action, std::string>>{{allocate, "join"},
                                                                                      {allocate, "join"},
                                                                                      {label, "hash table"},
                                                                                      {allocate, "query"},
                                                                                      {label, longer},
                                                                                      {label, "query"},
                                                                                      {label, ""}}));
}

TEST_F(pool_log, label_of_a_request_that_waited_is_in_its_row) {
  logging_adaptor subject{gpumem::pool_resource{device, {.limit = 4 * MiB}}, text, binary};
  auto block = gpumem::acquire(subject, a, 3 * MiB).wait();
  std::thread waiting{[&] {
    gpumem::scope query{subject, "query"};
    (void)query.acquire(b, 3 * MiB).wait();
  }};
  while (subject.statistics().waiting == 0) std::this_thread::yield();
  block.reset();
  waiting.join();
  ASSERT_TRUE(subject.flush());
  auto const labels = labels_in(text.str());
  ASSERT_FALSE(labels.empty());
  EXPECT_EQ(labels.front(), std::pair(allocate, std::string{"query"}));
}

// A scope's name has another number in the process each time, and numbers of ended scopes go to other names.
TEST_F(pool_log, each_label_has_its_text_once) {
  constexpr int scopes = 2'000, names = 700;
  gpumem::pool_resource pool{device};
  for (std::size_t const kept : {0, 5'000}) {
    std::ostringstream log;
    logging_adaptor subject{pool, log, {.format = gpumem::log_format::binary, .keep_last = kept}};
    for (int i = 0; i < scopes; ++i) {
      gpumem::scope batch{subject, "batch " + std::to_string(i % names)};
      (void)batch.acquire(a, 1000).wait();
    }
    ASSERT_TRUE(subject.flush());
    auto const labels = labels_in(log.str());
    ASSERT_EQ(labels.size(), std::size_t{scopes});
    for (int i = 0; i < scopes; ++i)
      ASSERT_EQ(labels[static_cast<std::size_t>(i)], std::pair(allocate, "batch " + std::to_string(i % names)));
    std::string const last = "batch " + std::to_string(names - 1);
    auto const at = log.str().find(last);
    EXPECT_NE(at, std::string::npos);
    EXPECT_EQ(log.str().find(last, at + 1), std::string::npos);
  }
}

TEST_F(pool_log, labels_beyond_the_bound_have_one_text) {
  constexpr int names = 65'600;
  {
    logging_adaptor subject{gpumem::pool_resource{device}, text, binary};
    for (int i = 0; i < names; ++i) {
      gpumem::scope batch{subject, "batch " + std::to_string(i)};
      batch.deallocate(a, batch.allocate(a, 1000), 1000);
    }
  }
  auto const labels = labels_in(text.str());
  ASSERT_EQ(labels.size(), std::size_t{names});
  EXPECT_EQ(labels[65'533].second, "batch 65533");
  EXPECT_EQ(labels[65'534].second, "(other labels)");
  EXPECT_EQ(labels.back().second, "(other labels)");
}

TEST_F(pool_log, label_without_host_memory_for_its_text_is_left_out) {
  if (!test::new_can_fail) GTEST_SKIP();
  bool refused = true;
  for (int successes = 0; refused; ++successes) {
    std::ostringstream log;
    {
      logging_adaptor subject{gpumem::pool_resource{device}, log, binary};
      subject.deallocate(a, subject.allocate(a, 1000), 1000);
      gpumem::scope query{subject, std::string(100, 'q')};
      void* block = nullptr;
      {
        test::failing_new const failing{successes, test::failing::only_one};
        block = query.allocate(a, 1000);
        refused = test::failing_new::refused();
      }
      query.deallocate(a, block, 1000);
      query.deallocate(a, query.allocate(a, 1000), 1000);
    }
    auto const labels = labels_in(log.str());
    ASSERT_FALSE(labels.empty()) << successes;
    for (auto const& each : labels) EXPECT_EQ(each.second, std::string(100, 'q')) << successes;
    if (successes == 0) EXPECT_EQ(labels.front().first, label);
  }
}

TEST_F(pool_log, last_rows_are_written_when_a_request_fails) {
  constexpr std::size_t kept = 50;
  for (int const calls : {10, 24, 25, 100, 3'000}) { // each has two rows; a thread's buffer holds 256
    std::ostringstream log;
    {
      logging_adaptor subject{gpumem::cuda_resource{}, log, {.format = gpumem::log_format::binary, .keep_last = kept}};
      for (int i = 0; i < calls; ++i)
        subject.deallocate_sync(subject.allocate_sync(static_cast<std::size_t>(i) + 1),
                                static_cast<std::size_t>(i) + 1);
      EXPECT_EQ(actions_in(log), std::vector<trace_action>{});
      EXPECT_FALSE(subject.try_allocate(a, std::size_t{1} << 50));
      auto const rows = test::read_log(log.str());
      auto const expected = std::min<std::size_t>(kept, 2 * static_cast<std::size_t>(calls) + 1);
      EXPECT_LE(rows.size(), expected);
      EXPECT_GE(rows.size() + 2, expected) << "rows of the clock take places too";
      ASSERT_FALSE(rows.empty());
      EXPECT_EQ(rows.back().action, allocate_failure);
      for (std::size_t i = 0; i + 1 < rows.size(); ++i)
        EXPECT_EQ(rows[i].bytes, static_cast<std::size_t>(calls) - (rows.size() - 2 - i) / 2) << i;
      subject.deallocate_sync(subject.allocate_sync(7), 7);
      EXPECT_EQ(test::read_log(log.str()).size(), rows.size());
      EXPECT_TRUE(subject.flush());
      EXPECT_EQ(test::read_log(log.str()).size(), rows.size() + 2) << "each row is written once";
      subject.deallocate_sync(subject.allocate_sync(7), 7);
    }
    EXPECT_EQ(test::read_log(log.str()).back().bytes, 7u);
  }
  EXPECT_THROW((logging_adaptor{gpumem::cuda_resource{}, text, {.keep_last = kept}}), std::invalid_argument);
  for (std::size_t const many : {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 100})
    EXPECT_THROW(
        (logging_adaptor{gpumem::host_resource{}, text, {.format = gpumem::log_format::binary, .keep_last = many}}),
        std::invalid_argument);
}

TEST_F(pool_log, last_rows_are_the_newest_of_all_threads) {
  constexpr std::size_t kept = 50, idle = 20;
  (void)gpumem::detail::sync::thread_index(); // the rows of this thread are collected first
  std::ostringstream log;
  logging_adaptor subject{gpumem::host_resource{}, log, {.format = gpumem::log_format::binary, .keep_last = kept}};
  std::barrier both{2};
  std::thread other{[&] {
    for (std::size_t i = 0; i < idle; ++i) subject.deallocate_sync(subject.allocate_sync(1), 1);
    both.arrive_and_wait();
    both.arrive_and_wait();
  }};
  both.arrive_and_wait();
  for (std::size_t const calls : {kept, std::size_t{1'000}}) { // two rows each: with and without a full buffer before
    for (std::size_t i = 0; i < calls; ++i) subject.deallocate_sync(subject.allocate_sync(2), 2);
    ASSERT_TRUE(subject.flush());
    auto const rows = test::read_log(log.str());
    EXPECT_EQ(std::ranges::count(rows, 2, &trace_record::bytes), std::ssize(rows)) << calls;
  }
  EXPECT_EQ(test::read_log(log.str()).size(), 2 * kept);
  both.arrive_and_wait();
  other.join();
}

TEST_F(pool_log, reasons_are_those_of_the_pools_below_bins) {
  gpumem::pool_resource upstream{device};
  gpumem::fixed_size_resource small{gpumem::cuda_resource{}, {.block_size = 4096}};
  {
    gpumem::binning_resource bins{upstream};
    bins.add_bin(4096, small);
    logging_adaptor subject{bins, text, binary};
    for (int round = 0; round < 3; ++round) {
      std::vector<std::pair<void*, std::size_t>> live;
      for (std::size_t const bytes : {100, 4096, 5000, 300'000}) live.emplace_back(subject.allocate(a, bytes), bytes);
      for (auto const& [block, bytes] : live) subject.deallocate(a, block, bytes);
    }
  }
  auto const expected = upstream.statistics().reuse_thread_cache + small.statistics().reuse_thread_cache;
  EXPECT_GT(expected, 0u);
  EXPECT_EQ(served_in(text)[served_by::thread_cache], expected);
  EXPECT_EQ(served_in(text)[served_by::unknown], 0u);
}

// A bin that is no pool has no reasons, and no memory beside that of its blocks.
TEST_F(pool_log, bins_that_are_no_pools_leave_the_log_without_reasons) {
  {
    gpumem::binning_resource bins{gpumem::pool_resource{device}};
    bins.add_bin(4096, gpumem::statistics_adaptor{gpumem::cuda_resource{}});
    logging_adaptor subject{bins, text, binary};
    for (int round = 0; round < 2; ++round)
      for (std::size_t const bytes : {100, 5000}) subject.deallocate(a, subject.allocate(a, bytes), bytes);
  }
  EXPECT_EQ(actions_in(text), (std::vector{allocate, free, allocate, free, allocate, free, allocate, free}));
  EXPECT_EQ(served_in(text)[served_by::thread_cache], 0u);
}

// The log must not show blocks of the second resource outside the memory of the first.
TEST_F(pool_log, pool_before_a_resource_that_is_none_leaves_the_log_without_memory) {
  {
    gpumem::fallback_adaptor both{gpumem::pool_resource{device}, gpumem::cuda_resource{}};
    logging_adaptor subject{both, text, binary};
    subject.deallocate(a, subject.allocate(a, 5000), 5000);
  }
  EXPECT_EQ(actions_in(text), (std::vector{allocate, free}));
}

TEST_F(pool_log, memory_of_a_captured_graph_is_from_no_thread_cache) {
  auto const& driver = gpumem::driver_api::driver();
  gpumem::pool_resource pool{device};
  gpumem::graph_resource memory{pool};
  {
    logging_adaptor subject{pool, text, binary};
    subject.deallocate(a, subject.allocate(a, 1000), 1000);
    auto const scope = pool.capture(memory, a);
    ASSERT_EQ(driver.stream_begin_capture(a.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i) subject.deallocate(a, subject.allocate(a, 1000), 1000);
    CUgraph graph = nullptr;
    ASSERT_EQ(driver.stream_end_capture(a.get(), &graph), CUDA_SUCCESS);
    ASSERT_EQ(driver.graph_destroy(graph), CUDA_SUCCESS);
  }
  EXPECT_EQ(served_in(text)[served_by::thread_cache], 0u);
}

// A request that may wait fails first, and has not run out of memory by that.
TEST_F(pool_log, last_rows_are_written_when_a_wait_ends_without_memory) {
  using namespace std::chrono_literals;
  logging_adaptor subject{
      gpumem::pool_resource{device, {.limit = 4 * MiB}}, text, {.format = gpumem::log_format::binary, .keep_last = 64}};
  auto block = gpumem::acquire(subject, a, 3 * MiB).wait();
  std::thread waiting{[&] { (void)gpumem::acquire(subject, b, 3 * MiB).wait(); }};
  while (subject.statistics().waiting == 0) std::this_thread::yield();
  EXPECT_EQ(actions_in(text), std::vector<trace_action>{});
  block.reset();
  waiting.join();
  block = gpumem::acquire(subject, a, 3 * MiB).wait();
  EXPECT_EQ(actions_in(text), std::vector<trace_action>{});
  EXPECT_THROW((void)gpumem::acquire(subject, b, 3 * MiB, {.deadline = std::chrono::steady_clock::now() + 1ms}).wait(),
               gpumem::acquire_error);
  ASSERT_FALSE(actions_in(text).empty());
  EXPECT_EQ(actions_in(text).back(), refusal);
}

TEST_F(pool_log, last_rows_are_written_when_a_request_is_too_late_to_wait) {
  for (bool const coroutine : {false, true}) {
    std::ostringstream log;
    gpumem::pool_resource pool{device, {.limit = 4 * MiB}};
    logging_adaptor subject{pool, log, {.format = gpumem::log_format::binary, .keep_last = 64}};
    auto const block = gpumem::acquire(subject, a, 3 * MiB).wait();
    auto const late = gpumem::acquire(subject, b, 3 * MiB, {.deadline = std::chrono::steady_clock::now()});
    auto const await = [&]() -> gpumem::task<> { (void)co_await late; };
    EXPECT_THROW(coroutine ? gpumem::sync_wait(await()) : static_cast<void>(late.wait()), gpumem::acquire_error);
    EXPECT_EQ(pool.statistics().failures, 1u);
    ASSERT_FALSE(actions_in(log).empty());
    EXPECT_EQ(actions_in(log).back(), refusal);
  }
}

// In a capture no request waits.
TEST_F(pool_log, last_rows_are_written_when_a_capture_gets_no_memory) {
  auto const& driver = gpumem::driver_api::driver();
  gpumem::pool_resource pool{device, {.limit = 4 * MiB}};
  logging_adaptor subject{pool, text, {.format = gpumem::log_format::binary, .keep_last = 64}};
  auto const block = gpumem::acquire(subject, a, 3 * MiB).wait();
  gpumem::graph_resource inside{pool};
  auto const scope = pool.capture(inside, b);
  b.begin_capture();
  auto const failures = pool.statistics().failures;
  EXPECT_THROW((void)gpumem::acquire(subject, b, 3 * MiB).wait(), gpumem::out_of_memory);
  EXPECT_EQ(pool.statistics().failures, failures + 1);
  EXPECT_EQ(actions_in(text), (std::vector{map, allocate, allocate_failure}));
  EXPECT_THROW((void)gpumem::acquire_all(subject, {{b, MiB}, {b, 3 * MiB}}).wait(), gpumem::out_of_memory);
  EXPECT_EQ(pool.statistics().failures, failures + 2);
  driver.graph_destroy(b.end_capture());
}

// A first attempt ends a request that is too large, and one to a resource that lets none wait.
TEST_F(pool_log, last_rows_are_written_when_a_first_attempt_ends_a_request) {
  gpumem::logging_options const options{.format = gpumem::log_format::binary, .keep_last = 64};
  {
    logging_adaptor subject{gpumem::pool_resource{device, {.limit = 4 * MiB}}, text, options};
    EXPECT_THROW((void)gpumem::acquire(subject, a, 5 * MiB).wait(), gpumem::out_of_memory);
    EXPECT_EQ(actions_in(text), std::vector{allocate_failure});
  }
  std::ostringstream second;
  logging_adaptor subject{gpumem::cuda_resource{}, second, options};
  EXPECT_THROW((void)gpumem::acquire(subject, a, std::size_t{1} << 50).wait(), gpumem::out_of_memory);
  EXPECT_EQ(actions_in(second), std::vector{allocate_failure});
}

// The sink makes the pool grow, while another thread grows it too and tells the log.
TEST_F(pool_log, sink_may_make_the_pool_grow) {
  struct growing_buffer final : std::streambuf {
    int_type overflow(int_type c) override { return c; }
    std::streamsize xsputn(char const*, std::streamsize count) override {
      if (!pool) return count;
      auto const bytes = (1 + grown++ % 4) * 16 * MiB;
      if (auto const got = pool->try_allocate(*stream, bytes)) pool->deallocate(*stream, *got, bytes);
      pool->trim();
      return count;
    }
    gpumem::pool_resource<gpumem::cuda_resource>* pool = nullptr;
    gpumem::stream* stream = nullptr;
    std::size_t grown = 0;
  } buffer;
  std::ostream sink{&buffer};
  gpumem::pool_resource pool{device};
  gpumem::pool_resource<gpumem::cuda_resource> same = pool;
  buffer.stream = &b;
  logging_adaptor subject{pool, sink, {.format = gpumem::log_format::binary, .auto_flush = true}};
  buffer.pool = &same;
  std::vector<std::thread> running;
  for (int i = 0; i < 2; ++i) {
    running.emplace_back([&] {
      for (int call = 0; call < 50; ++call) {
        subject.deallocate(a, subject.allocate(a, 24 * MiB), 24 * MiB);
        subject.trim();
      }
    });
  }
  for (auto& each : running) each.join();
  buffer.pool = nullptr;
  EXPECT_TRUE(subject.flush());
}

} // namespace
