// Binary logs: they have the rows of a log in RMM's format, and keep them as it does.
// SPDX-License-Identifier: Apache-2.0
#include "../support/failing_new.hpp"
#include "../support/simulated.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <ostream>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

import gpumem;
#include "log_rows.hpp"

namespace {

using gpumem::logging_adaptor;
using gpumem::extend::log_sink;
using gpumem::extend::trace_action;
using gpumem::extend::trace_record;

constexpr gpumem::logging_options binary{.format = gpumem::log_format::binary};
constexpr gpumem::logging_options binary_at_once{.format = gpumem::log_format::binary, .auto_flush = true};
constexpr std::size_t row_bytes = 40, ring_rows = 256, buffer_rows = (64 << 10) / row_bytes;

class binary_log : public simulated {
protected:
  void SetUp() override {
    simulated::SetUp();
    path_ = testing::TempDir() + "gpumem_" + std::to_string(getpid()) + "_" +
            testing::UnitTest::GetInstance()->current_test_info()->name() + ".gpumemlog";
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    simulated::TearDown();
  }
  std::string contents() const {
    std::ifstream file{path_, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
  }
  std::string path_;
};

template <class Adaptor> void make_rows(Adaptor& by, std::size_t calls) {
  for (std::size_t i = 0; i < calls; ++i) by.deallocate_sync(by.allocate_sync(8), 8);
}

std::size_t rows_in(std::ostringstream const& text) { return test::read_log(text.str()).size(); }

// The inner adaptor writes RMM's format, the outer one the binary form of the same calls.
TEST_F(binary_log, rows_equal_those_of_the_csv_of_the_same_calls) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    std::ostringstream csv, text;
    logging_adaptor subject{logging_adaptor{gpumem::cuda_resource{}, csv}, text, binary};
    auto inner = subject.upstream();
    std::vector<gpumem::stream> streams;
    for (int i = 0; i < 3; ++i) streams.emplace_back(gpumem::device{0});
    std::vector<std::pair<void*, std::size_t>> live;
    std::mt19937_64 random{seed};
    auto const free_one = [&] {
      auto const at = random() % live.size();
      subject.deallocate(streams[random() % 3], live[at].first, live[at].second);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    };
    for (int i = 0; i < 4'000; ++i) {
      if (random() % 2 && !live.empty()) {
        free_one();
      } else if (random() % 50 == 0) {
        EXPECT_THROW((void)subject.allocate(streams[0], std::size_t{1} << 50), gpumem::out_of_memory);
      } else {
        auto const bytes = 1 + random() % 5'000;
        live.emplace_back(subject.allocate(streams[random() % 3], bytes), bytes);
      }
    }
    while (!live.empty()) free_one();
    ASSERT_TRUE(subject.flush() && inner.flush());
    EXPECT_EQ(test::rows_without_times(text.str()), test::rows_without_times(csv.str())) << "seed " << seed;
  }
}

TEST_F(binary_log, times_begin_at_the_time_of_day_and_never_fall) {
  std::ostringstream csv, text;
  logging_adaptor before{gpumem::host_resource{}, csv, true};
  make_rows(before, 1);
  {
    logging_adaptor subject{gpumem::host_resource{}, text, binary};
    make_rows(subject, 20);
  }
  auto latest = test::read_log(csv.str()).back().microseconds;
  for (auto const& row : test::read_log(text.str())) {
    EXPECT_GE(row.microseconds, latest);
    latest = row.microseconds;
  }
}

TEST_F(binary_log, rows_are_written_when_the_common_buffer_is_full) {
  std::ostringstream text;
  logging_adaptor subject{gpumem::host_resource{}, text, binary};
  EXPECT_EQ(text.str().size(), row_bytes) << "the header";
  constexpr auto rings = buffer_rows / ring_rows; // rows that the buffer takes before it is written
  make_rows(subject, (rings + 1) * ring_rows / 2);
  EXPECT_EQ(rows_in(text), 0u);
  make_rows(subject, 1);
  EXPECT_EQ(rows_in(text), rings * ring_rows);
  ASSERT_TRUE(subject.flush());
  EXPECT_EQ(rows_in(text), (rings + 1) * ring_rows + 2);
  ASSERT_TRUE(subject.flush());
  EXPECT_EQ(rows_in(text), (rings + 1) * ring_rows + 2);
  make_rows(subject, ring_rows); // the ring wraps
  ASSERT_TRUE(subject.flush());
  test::expect_addresses_alternate(text.str());
  EXPECT_EQ(rows_in(text), (rings + 3) * ring_rows + 2);
}

TEST_F(binary_log, auto_flush_writes_each_row_at_once) {
  std::ostringstream text;
  logging_adaptor subject{gpumem::host_resource{}, text, binary_at_once};
  auto* const p = subject.allocate_sync(8);
  EXPECT_EQ(rows_in(text), 1u);
  subject.deallocate_sync(p, 8);
  EXPECT_EQ(rows_in(text), 2u);
  EXPECT_EQ(test::read_log(text.str()).size(), 2u);
}

TEST_F(binary_log, last_handle_and_block_write_the_rest_to_each_sink) {
  std::ostringstream text;
  gpumem::allocation block;
  gpumem::stream stream{gpumem::device{0}};
  {
    logging_adaptor subject{gpumem::cuda_resource{}, {log_sink{path_}, log_sink{text}}, binary};
    block = gpumem::acquire(subject, stream, 100).wait();
  }
  EXPECT_EQ(rows_in(text), 0u);
  block.reset();
  EXPECT_EQ(test::read_log(text.str()).size(), 2u);
  EXPECT_EQ(contents(), text.str());
}

TEST_F(binary_log, file_from_the_environment_may_be_binary) {
  ASSERT_EQ(::setenv("GPUMEM_LOG_FILE", path_.c_str(), 1), 0);
  {
    logging_adaptor subject{gpumem::host_resource{}, binary};
    make_rows(subject, 1);
  }
  EXPECT_EQ(test::read_log(contents()).size(), 2u);
  ASSERT_EQ(::unsetenv("GPUMEM_LOG_FILE"), 0);
  EXPECT_THROW((logging_adaptor{gpumem::host_resource{}, binary}), std::invalid_argument);
  EXPECT_THROW((logging_adaptor{gpumem::host_resource{}, std::vector<log_sink>{}, binary}), std::invalid_argument);
}

TEST_F(binary_log, failing_sink_loses_rows_but_no_memory) {
  for (auto const options : {binary, binary_at_once}) {
    std::ostringstream text, other;
    logging_adaptor subject{gpumem::host_resource{}, {log_sink{text}, log_sink{other}}, options};
    text.setstate(std::ios::failbit);
    make_rows(subject, buffer_rows);
    EXPECT_FALSE(subject.flush());
    EXPECT_EQ(rows_in(text), 0u);
    EXPECT_EQ(test::read_log(other.str()).size(), 2 * buffer_rows);
    text.clear();
    EXPECT_FALSE(subject.flush()) << "rows were lost";
  }
  std::ostringstream text;
  text.setstate(std::ios::badbit);
  EXPECT_THROW((logging_adaptor{gpumem::host_resource{}, text, binary}), std::runtime_error);
}

TEST_F(binary_log, sink_that_throws_fails) {
  std::ostringstream text;
  {
    logging_adaptor subject{gpumem::host_resource{}, text, binary};
    text.setstate(std::ios::failbit);
    EXPECT_THROW(text.exceptions(std::ios::failbit), std::ios::failure);
    make_rows(subject, buffer_rows);
    EXPECT_FALSE(subject.flush());
  }
  text.exceptions(std::ios::goodbit);
}

TEST_F(binary_log, thread_without_memory_for_a_ring_loses_no_rows) {
  if (!test::new_can_fail) GTEST_SKIP();
  (void)gpumem::detail::sync::thread_index(); // otherwise this thread might get the ring of the one that has ended
  std::vector<void*> blocks(2 * buffer_rows); // a row for each is more than the common buffer holds
  {
    logging_adaptor subject{gpumem::host_resource{}, log_sink{path_}, binary};
    std::thread{[&] {
      for (auto& each : blocks) each = subject.allocate_sync(8);
    }}.join();
    ASSERT_TRUE(subject.flush());
    auto const before = contents().size();
    {
      test::failing_new const failing;
      for (auto* const each : blocks) subject.deallocate_sync(each, 8);
    }
    EXPECT_GT(contents().size(), before + buffer_rows * row_bytes) << "the rows are in a ring";
    make_rows(subject, 3);
    EXPECT_TRUE(subject.flush());
  }
  EXPECT_EQ(test::read_log(contents()).size(), 2 * blocks.size() + 6);
  test::expect_addresses_alternate(contents());
}

TEST_F(binary_log, threads_that_end_lose_no_rows) {
  std::ostringstream text;
  logging_adaptor subject{gpumem::host_resource{}, text, binary};
  for (int i = 0; i < 200; ++i) {
    std::thread{[&] { make_rows(subject, 3); }}.join();
  }
  ASSERT_TRUE(subject.flush());
  EXPECT_EQ(rows_in(text), 1'200u);
  test::expect_addresses_alternate(text.str());
}

TEST_F(binary_log, rows_of_a_thread_that_is_ending_are_not_lost) {
  std::ostringstream text;
  logging_adaptor subject{gpumem::host_resource{}, text, binary};
  std::thread{[&] {
    struct last_call {
      ~last_call() { by->deallocate_sync(block, 8); }
      logging_adaptor<gpumem::host_resource>* by = nullptr;
      void* block = nullptr;
    };
    thread_local last_call end; // made before the thread has an index, so destroyed after the index is given back
    end.by = &subject;
    end.block = subject.allocate_sync(8);
  }}.join();
  ASSERT_TRUE(subject.flush());
  EXPECT_EQ(rows_in(text), 2u);
  test::expect_addresses_alternate(text.str());
}

TEST_F(binary_log, more_threads_than_rings_lose_no_rows) {
  constexpr int threads = 80, rounds = 100;
  std::ostringstream text;
  logging_adaptor subject{gpumem::host_resource{}, text, binary};
  std::barrier all{threads};
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      make_rows(subject, rounds);
      all.arrive_and_wait(); // until then each thread keeps its index
    });
  }
  for (auto& each : running) each.join();
  ASSERT_TRUE(subject.flush());
  EXPECT_EQ(rows_in(text), 2u * threads * rounds);
  test::expect_addresses_alternate(text.str());
  std::set<std::uint64_t> ids;
  for (auto const& row : test::read_log(text.str())) ids.insert(row.thread);
  EXPECT_EQ(ids.size(), std::size_t{threads});
}

// Threads free each other's blocks, while another thread flushes.
template <class Resource> void expect_order_of_concurrent_rows(Resource resource, gpumem::stream const& stream) {
  constexpr int threads = 4, rounds = 2'000;
  std::ostringstream text;
  logging_adaptor subject{std::move(resource), text, binary};
  std::mutex mutex;
  std::vector<void*> passed;
  std::atomic<bool> ended{false};
  std::thread flushing{[&] {
    while (!ended.load()) EXPECT_TRUE(subject.flush());
  }};
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) {
        auto* block = subject.allocate(stream, 64);
        {
          std::scoped_lock const held{mutex};
          passed.push_back(block);
          block = passed[passed.size() / 2];
          passed.erase(passed.begin() + static_cast<std::ptrdiff_t>(passed.size() / 2));
        }
        subject.deallocate(stream, block, 64);
      }
    });
  }
  for (auto& each : running) each.join();
  ended = true;
  flushing.join();
  ASSERT_TRUE(subject.flush());
  auto rows = test::read_log(text.str());
  EXPECT_EQ(std::ranges::count_if(rows, test::is_call), 2 * threads * rounds);
  test::expect_addresses_alternate(text.str());
}

TEST_F(binary_log, concurrent_rows_are_put_in_order) {
  gpumem::stream const stream{gpumem::device{0}};
  expect_order_of_concurrent_rows(gpumem::host_resource{}, stream);
  expect_order_of_concurrent_rows(gpumem::pool_resource{gpumem::device{0}}, stream);
}

TEST_F(binary_log, request_that_waits_leaves_a_failure_and_then_an_allocation) {
  constexpr std::size_t bytes = 3 << 20;
  gpumem::stream a{gpumem::device{0}}, b{gpumem::device{0}};
  for (auto const options : {gpumem::logging_options{}, binary, binary_at_once}) {
    std::ostringstream text;
    {
      logging_adaptor subject{gpumem::pool_resource{gpumem::device{0}, {.limit = 4 << 20}}, text, options};
      auto block = gpumem::acquire(subject, a, bytes).wait();
      std::thread waiting{[&] { EXPECT_EQ(gpumem::acquire(subject, b, bytes).wait().bytes(), bytes); }};
      while (subject.statistics().waiting == 0) std::this_thread::yield();
      block.reset();
      waiting.join();
    }
    std::vector<trace_action> actions;
    for (auto const& row : test::read_log(text.str())) actions.push_back(row.action);
    using enum trace_action;
    if (options.format == gpumem::log_format::csv) {
      EXPECT_EQ(actions, (std::vector{allocate, allocate_failure, free, allocate, free}));
    } else {
      EXPECT_EQ(actions, (std::vector{map, allocate, allocate_failure, wait, free, allocate, free}));
    }
  }
}

TEST_F(binary_log, forked_child_writes_nothing) {
  for (auto const options : {binary, binary_at_once}) {
    auto* const subject = new logging_adaptor{gpumem::host_resource{}, log_sink{path_}, options};
    auto* const block = subject->allocate_sync(8);
    auto const pid = fork();
    if (pid == 0) {
      alarm(10); // seconds, far more than it needs
      subject->deallocate_sync(block, 8);
      bool refused = false;
      try {
        make_rows(*subject, 1);
      } catch (std::runtime_error const&) { refused = true; }
      bool const flushed = subject->flush();
      delete subject;
      _exit(refused && !flushed ? 0 : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    subject->deallocate_sync(block, 8);
    EXPECT_TRUE(subject->flush());
    delete subject;
    EXPECT_EQ(test::read_log(contents()).size(), 2u);
  }
}

} // namespace
