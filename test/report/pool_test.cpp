// Logs of pools: the report says what the statistics of the pool say.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
import replay;
import report;

namespace {

using gpumem::extend::served_by;

constexpr std::size_t MiB = std::size_t{1} << 20;

class report_of_pool : public simulated {
protected:
  ~report_of_pool() override { std::filesystem::remove(file); }
  report::summary read() const { return report::summarize(report::read_recordings(file).front()); }

  gpumem::device device{0};
  gpumem::stream a{device}, b{device};
  std::string file = (std::filesystem::temp_directory_path() / ("gpumem_report_" + std::to_string(getpid()) + ".log"));
};

TEST_F(report_of_pool, figures_are_the_statistics_of_the_pool) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    gpumem::pool_resource pool{device, {.limit = 48 * MiB, .effort = 1}};
    {
      gpumem::logging_adaptor subject{pool, file, {.format = gpumem::log_format::binary}};
      std::mt19937_64 random{seed};
      std::vector<std::pair<void*, std::size_t>> live;
      for (int call = 0; call < 1'500; ++call) {
        auto const& stream = random() % 2 ? a : b;
        if (!live.empty() && random() % 2) {
          auto const at = random() % live.size();
          subject.deallocate(stream, live[at].first, live[at].second);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
        } else {
          auto const bytes = random() % 3 ? 1 + random() % 4096 : 1 + random() % (9 * MiB);
          if (auto const got = subject.try_allocate(stream, bytes)) live.emplace_back(*got, bytes);
        }
      }
      ASSERT_TRUE(subject.flush());
      auto const expected = pool.statistics();
      auto const made = read();
      EXPECT_EQ(made.memory, report::memory_source::log);
      EXPECT_EQ(made.main.last.live, expected.live);
      EXPECT_EQ(made.main.last.blocks, live.size());
      EXPECT_EQ(made.main.last.reserved, expected.reserved);
      EXPECT_EQ(made.main.peak_live.live, expected.peak_live);
      EXPECT_EQ(made.main.peak_reserved.reserved, expected.peak_reserved);
      EXPECT_GE(made.main.last.free, expected.free) << "what caches hold is free here";
      EXPECT_GE(made.main.last.largest_free, expected.largest_free);
      EXPECT_EQ(made.main.served[static_cast<std::size_t>(served_by::thread_cache)], expected.reuse_thread_cache);
      EXPECT_EQ(made.main.served[static_cast<std::size_t>(served_by::completed)], expected.reuse_completed);
      EXPECT_EQ(made.main.served[static_cast<std::size_t>(served_by::unknown)], 0u);
      EXPECT_EQ(made.main.unknown_frees, 0u);
      EXPECT_EQ(made.main.failures, expected.failures);
      for (auto const& [block, bytes] : live) subject.deallocate(a, block, bytes);
    }
    gpumem::simulator::take_findings(); // frees on another stream have no order here
  }
}

TEST_F(report_of_pool, waits_are_those_of_the_pool) {
  using namespace std::chrono_literals;
  {
    gpumem::logging_adaptor subject{
        gpumem::pool_resource{device, {.limit = 4 * MiB}}, file, {.format = gpumem::log_format::binary}};
    auto block = gpumem::acquire(subject, a, 3 * MiB).wait();
    EXPECT_THROW(
        (void)gpumem::acquire(subject, b, 3 * MiB, {.deadline = std::chrono::steady_clock::now() + 1ms}).wait(),
        gpumem::acquire_error);
    std::thread waiting{[&] { EXPECT_EQ(gpumem::acquire(subject, b, 3 * MiB).wait().bytes(), 3 * MiB); }};
    while (subject.statistics().waiting == 0) std::this_thread::yield();
    block.reset();
    waiting.join();
  }
  auto const made = read();
  EXPECT_EQ(made.main.waits, 2u);
  EXPECT_EQ(made.main.refusals, 1u);
  EXPECT_EQ(made.main.served[static_cast<std::size_t>(served_by::turn)], 1u);
  ASSERT_EQ(made.waits.size(), 2u);
  EXPECT_TRUE(made.waits[0].refused);
  EXPECT_LE(made.waits[0].end, made.waits[1].begin);
  EXPECT_FALSE(made.waits[1].refused);
  EXPECT_EQ(made.main.last.live, 0u);
}

TEST_F(report_of_pool, holders_by_label_are_those_of_the_pool) {
  using bytes_by_name = std::map<std::string, std::uint64_t>;
  {
    gpumem::logging_adaptor subject{gpumem::pool_resource{device}, file, {.format = gpumem::log_format::binary}};
    gpumem::scope forward{subject, "forward"};
    auto const first = forward.acquire(a, 2 * MiB).wait();
    auto const second = gpumem::acquire(subject, a, 3 * MiB, {.label = "weights"}).wait();
    void* const third = subject.allocate(b, 5 * MiB);
    void* const fourth = subject.allocate(b, MiB);
    std::string name = "cache";
    auto const from = subject.services();
    EXPECT_TRUE(from.table->set_label(from.state, fourth, gpumem::detail::label_number(name)));
    ASSERT_TRUE(subject.flush());
    auto const made = read();
    for (auto const* const lists : {&made.at_peak, &made.at_end}) {
      bytes_by_name seen;
      for (auto const& each : lists->labels) seen[each.name] = each.bytes;
      EXPECT_EQ(seen,
                (bytes_by_name{{"forward", 2 * MiB}, {"weights", 3 * MiB}, {"cache", MiB}, {"no label", 5 * MiB}}));
      EXPECT_EQ(lists->streams.size(), 2u);
    }
    EXPECT_EQ(made.label_colors.size(), 4u);
    subject.deallocate(b, fourth, MiB);
    subject.deallocate(b, third, 5 * MiB);
  }
  EXPECT_TRUE(read().at_end.labels.empty());
}

TEST_F(report_of_pool, log_that_is_cut_is_named) {
  GTEST_FLAG_SET(death_test_style, "threadsafe"); // runs the test again in another process, with a log of its own
  {
    gpumem::logging_adaptor subject{gpumem::pool_resource{device}, file, {.format = gpumem::log_format::binary}};
    subject.deallocate(a, subject.allocate(a, MiB), MiB);
  }
  EXPECT_EXIT(
      {
        auto const all = report::read_recordings(file);
        report::end_if_a_log_is_cut();
        std::filesystem::resize_file(file, 0);
        std::filesystem::remove(file); // the test's end, which removes it, does not come
        report::each_event(all.front(), [](report::event const&) {});
      },
      testing::ExitedWithCode(2), "gpumem-report: .*gpumem_report_.* was cut while it was read");
}

// A log that keeps its last rows begins with live blocks.
TEST_F(report_of_pool, log_of_the_last_rows_has_what_it_shows) {
  {
    gpumem::logging_adaptor subject{
        gpumem::cuda_resource{device}, file, {.format = gpumem::log_format::binary, .keep_last = 8}};
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) blocks.push_back(subject.allocate(a, 1000));
    for (void* const block : blocks) subject.deallocate(a, block, 1000);
    ASSERT_TRUE(subject.flush());
  }
  auto const made = read();
  EXPECT_EQ(made.memory, report::memory_source::none);
  EXPECT_GT(made.main.unknown_frees, 0u);
  EXPECT_EQ(made.main.last.live, 0u);
  EXPECT_TRUE(made.frames.empty());
}

// A resource with a fallback does not tell of its pages, so the report replays its log.
TEST_F(report_of_pool, log_without_pages_keeps_labels_and_waits) {
  {
    gpumem::pool_resource pool{device, {.limit = 8 * MiB}};
    gpumem::logging_adaptor subject{
        gpumem::fallback_adaptor{pool, gpumem::limiting_adaptor{gpumem::cuda_resource{device}, {.limit = MiB}}},
        file,
        {.format = gpumem::log_format::binary}};
    auto first = gpumem::acquire(subject, a, 5 * MiB, {.label = "weights"}).wait();
    auto const other = gpumem::acquire(subject, a, 2 * MiB, {.label = "cache"}).wait();
    auto const soon = std::chrono::steady_clock::now() + std::chrono::milliseconds{1};
    EXPECT_THROW((void)gpumem::acquire(subject, b, 6 * MiB, {.deadline = soon}).wait(), gpumem::acquire_error);
    std::thread waiting{[&] { (void)gpumem::acquire(subject, b, 4 * MiB).wait(); }};
    while (pool.statistics().waiting == 0) std::this_thread::yield();
    first.reset();
    waiting.join();
    auto const from = subject.services();
    auto const renamed = gpumem::detail::label_number("queries");
    EXPECT_TRUE(from.table->set_label(from.state, other.data(), renamed));
    ASSERT_TRUE(subject.flush());
    auto const made = read();
    EXPECT_EQ(made.memory, report::memory_source::replay);
    EXPECT_EQ(made.main.waits, 2u);
    EXPECT_EQ(made.main.refusals, 1u);
    ASSERT_EQ(made.waits.size(), 2u);
    EXPECT_TRUE(made.waits[0].refused != made.waits[1].refused);
    ASSERT_EQ(made.at_end.labels.size(), 1u);
    EXPECT_EQ(made.at_end.labels[0].bytes, 2 * MiB);
    EXPECT_EQ(made.at_end.labels[0].name, "queries");
    EXPECT_EQ(made.main.served[static_cast<std::size_t>(served_by::turn)], 1u);
  }
}

TEST_F(report_of_pool, text_log_is_read_from_a_pipe) {
  std::string rows;
  {
    std::ostringstream log;
    gpumem::logging_adaptor subject{gpumem::cuda_resource{device}, log};
    for (int i = 0; i < 3; ++i) subject.deallocate(a, subject.allocate(a, MiB), MiB);
    ASSERT_TRUE(subject.flush());
    rows = log.str();
  }
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  // Its one open() is one reader. A second reader would find no writer, and wait for ever.
  std::thread writer{[&] { std::ofstream{file} << rows; }};
  auto const made = read();
  writer.join();
  EXPECT_EQ(made.main.peak_live.live, MiB);
  EXPECT_EQ(made.memory, report::memory_source::replay);
}

} // namespace
