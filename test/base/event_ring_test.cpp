// The ring of one stream's open events.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <chrono>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::detail::event_ring;
using gpumem::detail::request_flag;
using gpumem::detail::stream_epochs;
using gpumem::detail::stream_identity;
using gpumem::detail::stream_kind;
namespace simulator = gpumem::simulator;

class event_ring_test : public test::stepped_device {
protected:
  void SetUp() override { gpumem::detail::make_spare_events(first.context()); }
  gpumem::extend::epoch record(bool precise = false) { return ring.record(a.get(), precise, request, 0); }

  gpumem::device first{0};
  gpumem::stream a{first};
  stream_identity const identity{stream_kind::own, 1, 1, 0, first.context(), a.get()};
  stream_epochs epochs;
  event_ring ring{identity, epochs};
  request_flag request;
};

TEST_F(event_ring_test, complete_events_leave_the_ring) {
  EXPECT_FALSE(ring.open_since());
  EXPECT_EQ(ring.newest(), 0u);
  auto const covers = record();
  EXPECT_EQ(ring.newest(), covers);
  EXPECT_TRUE(ring.open_since());
  ring.retire_completed(0);
  EXPECT_FALSE(epochs.completed(covers));
  simulator::run_until_idle();
  ring.retire_completed(0);
  EXPECT_TRUE(epochs.completed(covers));
  EXPECT_FALSE(ring.open_since());
}

TEST_F(event_ring_test, complete_event_becomes_a_spare_of_the_ring) {
  EXPECT_FALSE(ring.has_spare());
  record();
  simulator::run_until_idle();
  ring.retire_completed(0);
  EXPECT_TRUE(ring.has_spare());
  record();
  EXPECT_FALSE(ring.has_spare());
}

TEST_F(event_ring_test, only_a_precise_event_is_waitable) {
  auto const late = record(), precise = record(true);
  EXPECT_EQ(ring.find_waitable(late), nullptr);
  EXPECT_NE(ring.find_waitable(precise), nullptr);
  simulator::run_until_idle();
  ring.retire_completed(0);
  EXPECT_EQ(ring.find_waitable(precise), nullptr);
}

TEST_F(event_ring_test, full_ring_drops_the_request) {
  for (int i = 0; i < 64; ++i) {
    gpumem::detail::make_spare_events(first.context());
    ASSERT_NE(record(), 0u) << i;
  }
  gpumem::detail::make_spare_events(first.context());
  request.raise();
  EXPECT_EQ(record(), 0u);
  EXPECT_FALSE(request.raised());
  simulator::run_until_idle();
  EXPECT_NE(record(), 0u);
}

TEST_F(event_ring_test, capture_keeps_the_request) {
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_begin_capture(a.get(), CU_STREAM_CAPTURE_MODE_GLOBAL),
                            "begin");
  request.raise();
  EXPECT_EQ(record(), 0u);
  EXPECT_TRUE(request.raised());
  EXPECT_TRUE(ring.has_spare()) << "the event that it did not record";
  CUgraph graph = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_end_capture(a.get(), &graph), "end");
  gpumem::driver_api::driver().graph_destroy(graph);
  EXPECT_NE(record(), 0u);
  EXPECT_FALSE(request.raised());
}

TEST_F(event_ring_test, failed_record_leaves_the_frees_uncovered) {
  epochs.count_uncovered(1);
  simulator::fail_call("cuEventRecord", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(record(), 0u);
  EXPECT_EQ(epochs.uncovered_frees(), 1u);
  EXPECT_FALSE(ring.open_since());
  record();
  EXPECT_EQ(epochs.uncovered_frees(), 0u);
}

} // namespace
