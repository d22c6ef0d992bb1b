// The last event of a stream that may die.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <chrono>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::detail::last_event;
using gpumem::detail::stream_epochs;
using gpumem::detail::stream_identity;
using gpumem::detail::stream_kind;
namespace simulator = gpumem::simulator;

class last_event_test : public test::stepped_device {
protected:
  ~last_event_test() override { gpumem::detail::give_event(event); }

  gpumem::device first{0};
  gpumem::stream a{first};
  stream_identity const identity{stream_kind::foreign, 1, 1, 0, first.context(), a.get()};
  stream_epochs epochs;
  gpumem::detail::pooled_event* const event = gpumem::detail::take_event(first.context());
  last_event last{identity, epochs, event};
};

TEST_F(last_event_test, covers_the_frees_before_its_newest_record) {
  epochs.count_uncovered(1);
  auto const before = last.record(a.get(), 0);
  epochs.count_uncovered(1);
  auto const covers = last.record(a.get(), 0);
  EXPECT_GT(covers, before);
  EXPECT_EQ(last.open_epoch(), covers);
  EXPECT_EQ(epochs.uncovered_frees(), 0u);
  last.poll(0);
  EXPECT_TRUE(last.open_since());
  simulator::run_until_idle();
  last.poll(0);
  EXPECT_FALSE(last.open_since());
  EXPECT_EQ(last.open_epoch(), 0u);
  EXPECT_TRUE(epochs.completed(covers));
}

TEST_F(last_event_test, failed_record_keeps_the_previous_one) {
  auto const covers = last.record(a.get(), 0);
  epochs.count_uncovered(1);
  simulator::fail_call("cuEventRecord", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(last.record(a.get(), 0), 0u);
  EXPECT_EQ(last.open_epoch(), covers);
  EXPECT_EQ(epochs.uncovered_frees(), 1u);
}

TEST_F(last_event_test, failed_query_loses_the_event) {
  auto const covers = last.record(a.get(), 0);
  EXPECT_EQ(epochs.newest_recorded(), covers);
  simulator::fail_call("cuEventQuery", 1, CUDA_ERROR_INVALID_VALUE);
  last.poll(0);
  EXPECT_FALSE(last.open_since());
  EXPECT_FALSE(epochs.completed(covers));
  EXPECT_EQ(epochs.newest_recorded(), 0u);
  EXPECT_EQ(epochs.uncovered_frees(), 1u);
}

TEST_F(last_event_test, stream_that_never_dies_has_none) {
  last_event none{identity, epochs, nullptr};
  EXPECT_EQ(none.record(a.get(), 0), 0u);
  none.poll(0);
  EXPECT_FALSE(none.open_since());
}

} // namespace
