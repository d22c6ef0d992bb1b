// Queries with stepping::manual: those that can never find work done make the device say why.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <chrono>
#include <string>

namespace {

using namespace std::chrono_literals;
using simulator::stepping;

class queries_in_vain : public simulated_device {
protected:
  void SetUp() override {
    simulated_device::SetUp();
    restart(stepping::manual);
  }
  /// The next query is the first; any later one is at the stall timeout.
  void restart(stepping mode, std::chrono::milliseconds stall_timeout = 0ms) {
    simulator::options how;
    how.mode = mode;
    how.stall_timeout = stall_timeout;
    simulator::reset(how);
    stream_ = new_stream();
    event_ = new_event();
    simulator::work(stream_, {}, 1us);
    simulator::work(stream_, {}, 1us);
    EXPECT_EQ(cu().event_record(event_, stream_), CUDA_SUCCESS);
  }
  /// Returns the number of warnings while `function` runs.
  template <class Function> static int warnings(Function function) {
    testing::internal::CaptureStderr();
    function();
    std::string const told = testing::internal::GetCapturedStderr();
    int count = 0;
    for (auto at = told.find("stepping::manual"); at != std::string::npos; at = told.find("stepping::manual", at + 1))
      ++count;
    return count;
  }
  void query() const { EXPECT_EQ(cu().event_query(event_), CUDA_ERROR_NOT_READY); }

  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
};

TEST_F(queries_in_vain, event_that_cannot_complete_is_told_once) {
  EXPECT_EQ(warnings([&] {
              for (int i = 0; i < 5; ++i) query();
            }),
            1);
}

TEST_F(queries_in_vain, stream_that_cannot_complete_is_told_once) {
  EXPECT_EQ(warnings([&] {
              for (int i = 0; i < 5; ++i) EXPECT_EQ(cu().stream_query(stream_), CUDA_ERROR_NOT_READY);
            }),
            1);
}

TEST_F(queries_in_vain, step_between_the_queries_begins_the_time_anew) {
  EXPECT_EQ(warnings([&] {
              query();
              simulator::step();
              query();
              simulator::work(stream_, {}, 1us);
              query();
            }),
            0);
}

TEST_F(queries_in_vain, nothing_is_told_before_the_stall_timeout) {
  restart(stepping::manual, 1h);
  EXPECT_EQ(warnings([&] {
              for (int i = 0; i < 5; ++i) query();
            }),
            0);
}

TEST_F(queries_in_vain, nothing_is_told_where_work_runs_by_itself) {
  restart(stepping::automatic);
  simulator::never_complete(event_);
  EXPECT_EQ(warnings([&] {
              for (int i = 0; i < 5; ++i) query();
            }),
            0);
}

} // namespace
