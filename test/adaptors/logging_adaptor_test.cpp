// Logs: a trace reader can read what the adaptor writes.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

import gpumem;

namespace {

using gpumem::extend::trace_action;

std::vector<gpumem::extend::trace_record> read(std::string text) {
  return gpumem::extend::trace_reader{std::move(text)}.read_all();
}

std::string contents(std::filesystem::path const& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

class logging_adaptor : public simulated {
protected:
  void SetUp() override {
    simulated::SetUp();
    auto const* const test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "gpumem_" + test->name() + ".csv";
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    simulated::TearDown();
  }
  std::string path_;
};

TEST_F(logging_adaptor, path_is_not_taken_for_a_bool) {
  gpumem::stream stream{gpumem::device{0}};
  gpumem::logging_adaptor subject(gpumem::cuda_resource{}, path_.c_str());
  subject.deallocate(stream, subject.allocate(stream, 100), 100);
  EXPECT_TRUE(subject.flush());
  EXPECT_EQ(read(contents(path_)).size(), 2u);
  gpumem::logging_adaptor flushed(gpumem::cuda_resource{}, path_.c_str(), true);
  flushed.deallocate_sync(flushed.allocate_sync(10), 10);
  EXPECT_EQ(read(contents(path_)).size(), 2u) << "without flush()";
}

TEST_F(logging_adaptor, trace_reader_reads_what_it_writes) {
  std::ostringstream text;
  gpumem::logging_adaptor subject{gpumem::cuda_resource{}, text};
  gpumem::stream stream{gpumem::device{0}};
  void* const p = subject.allocate(stream, 1234);
  EXPECT_THROW((void)subject.allocate(stream, std::size_t{1} << 50), gpumem::out_of_memory);
  void* const q = subject.allocate_sync(99);
  subject.deallocate(stream, p, 1234);
  subject.deallocate_sync(q, 99);
  EXPECT_TRUE(subject.flush());

  EXPECT_EQ(text.str().substr(0, subject.header().size() + 1), std::string{subject.header()} + "\n");
  auto const rows = read(text.str());
  auto const handle = reinterpret_cast<std::uintptr_t>(stream.get());
  auto const address = [](void* of) { return reinterpret_cast<std::uintptr_t>(of); };
  ASSERT_EQ(rows.size(), 5u);
  auto const expect = [&](int row, trace_action action, std::uint64_t pointer, std::uint64_t bytes, std::uint64_t on) {
    auto const& is = rows[row];
    EXPECT_EQ(is, (gpumem::extend::trace_record{rows[0].thread, is.microseconds, action, pointer, bytes, on})) << row;
    EXPECT_GE(is.microseconds, rows[0].microseconds);
  };
  expect(0, trace_action::allocate, address(p), 1234, handle);
  expect(1, trace_action::allocate_failure, 0, std::uint64_t{1} << 50, handle);
  expect(2, trace_action::allocate, address(q), 99, 0);
  expect(3, trace_action::free, address(p), 1234, handle);
  expect(4, trace_action::free, address(q), 99, 0);
}

TEST_F(logging_adaptor, keeps_rows_until_a_flush_unless_told_otherwise) {
  std::ostringstream kept, at_once;
  gpumem::logging_adaptor lazy{gpumem::host_resource{}, kept};
  gpumem::logging_adaptor eager{gpumem::host_resource{}, at_once, true};
  lazy.deallocate_sync(lazy.allocate_sync(8), 8);
  eager.deallocate_sync(eager.allocate_sync(8), 8);
  EXPECT_EQ(read(kept.str()).size(), 0u);
  EXPECT_EQ(read(at_once.str()).size(), 2u);
  EXPECT_TRUE(lazy.flush());
  EXPECT_EQ(read(kept.str()).size(), 2u);
}

TEST_F(logging_adaptor, writes_to_a_file_and_to_several_sinks) {
  std::ostringstream text;
  {
    gpumem::logging_adaptor subject{gpumem::host_resource{},
                                    {gpumem::extend::log_sink{path_}, gpumem::extend::log_sink{text}}};
    subject.deallocate_sync(subject.allocate_sync(8), 8);
  } // the last handle writes the buffered rest
  EXPECT_EQ(read(text.str()).size(), 2u);
  EXPECT_EQ(contents(path_), text.str());
}

TEST_F(logging_adaptor, takes_its_file_from_the_environment) {
  ASSERT_EQ(::setenv("GPUMEM_LOG_FILE", path_.c_str(), 1), 0);
  {
    gpumem::logging_adaptor subject{gpumem::host_resource{}};
    subject.deallocate_sync(subject.allocate_sync(8), 8);
  }
  EXPECT_EQ(read(contents(path_)).size(), 2u);
  ASSERT_EQ(::unsetenv("GPUMEM_LOG_FILE"), 0);
}

TEST_F(logging_adaptor, construction_without_a_log_file_says_so) {
  ASSERT_EQ(::unsetenv("GPUMEM_LOG_FILE"), 0);
  try {
    gpumem::logging_adaptor subject{gpumem::host_resource{}};
    FAIL() << "made without a file";
  } catch (std::invalid_argument const& e) {
    EXPECT_NE(std::string{e.what()}.find("GPUMEM_LOG_FILE"), std::string::npos);
  }
  auto const nowhere = path_ + "/no/such/folder";
  try {
    gpumem::logging_adaptor subject{gpumem::host_resource{}, gpumem::extend::log_sink{nowhere}};
    FAIL() << "made without a folder";
  } catch (std::runtime_error const& e) { EXPECT_NE(std::string{e.what()}.find(nowhere), std::string::npos); }
  EXPECT_THROW((gpumem::logging_adaptor{gpumem::host_resource{}, std::vector<gpumem::extend::log_sink>{}}),
               std::invalid_argument);
}

TEST_F(logging_adaptor, failing_sink_loses_rows_but_no_memory) {
  std::ostringstream text;
  gpumem::logging_adaptor subject{gpumem::host_resource{}, text, true};
  text.setstate(std::ios::failbit);
  void* const p = subject.allocate_sync(8);
  EXPECT_NE(p, nullptr);
  subject.deallocate_sync(p, 8);
  EXPECT_FALSE(subject.flush());
}

TEST_F(logging_adaptor, concurrent_rows_stay_whole_and_addresses_never_overlap) {
  constexpr int threads = 4, rounds = 2000;
  std::ostringstream text;
  gpumem::logging_adaptor subject{gpumem::host_resource{}, text};
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) subject.deallocate_sync(subject.allocate_sync(64), 64);
    });
  }
  for (auto& thread : running) thread.join();
  ASSERT_TRUE(subject.flush());
  auto const rows = read(text.str());
  ASSERT_EQ(rows.size(), 2u * threads * rounds);
  std::map<std::uint64_t, bool> live;
  std::map<std::uint64_t, int> by_thread;
  for (auto const& row : rows) {
    ++by_thread[row.thread];
    EXPECT_NE(live[row.pointer], row.action == trace_action::allocate) << row.pointer;
    live[row.pointer] = row.action == trace_action::allocate;
  }
  EXPECT_EQ(by_thread.size(), std::size_t{threads});
}

} // namespace
