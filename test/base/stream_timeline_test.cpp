// Timelines: the epochs, the events and the order of streams together.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <chrono>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::device;
using gpumem::stream;
using stream_timeline =
    std::remove_reference_t<decltype(std::declval<gpumem::extend::stream_key const&>().identity().timeline())>;
namespace simulator = gpumem::simulator;

class timeline_test : public test::stepped_device {
protected:
  // Events that an earlier test left on a pooled stream are polled first.
  void SetUp() override {
    simulator::run_until_idle();
    for (auto* s : {&a, &b}) timeline(*s).poll();
  }
  stream_timeline& timeline(stream& s) { return s.key().identity().timeline(); }
  device first{0};
  stream a{first}, b{first};
};

TEST_F(timeline_test, later_event_completes_all_earlier_frees) {
  simulator::work(a, {}, 1us);
  auto const freed = timeline(a).current_epoch();
  auto const covers = timeline(a).record_later(a.get());
  EXPECT_GE(covers, freed);
  EXPECT_GT(timeline(a).current_epoch(), covers);
  EXPECT_TRUE(timeline(a).has_event());
  EXPECT_EQ(timeline(a).newest_recorded(), covers);
  timeline(a).poll();
  EXPECT_FALSE(timeline(a).completed(freed));
  simulator::run_until_idle();
  timeline(a).poll();
  EXPECT_TRUE(timeline(a).completed(freed));
  EXPECT_FALSE(timeline(a).has_event());
}

TEST_F(timeline_test, event_recorded_after_the_free_is_not_waited_for) {
  auto const covers = timeline(a).record_later(a.get());
  EXPECT_FALSE(timeline(a).insert_wait(timeline(b), b.get(), covers));
  EXPECT_FALSE(timeline(b).ordered_after(timeline(a), covers));
}

TEST_F(timeline_test, event_recorded_at_the_free_is_waited_for) {
  auto const before = timeline(a).current_epoch();
  auto const block = timeline(a).record_at_free(a.get());
  EXPECT_GT(block, before); // an epoch in which no other thread has freed
  EXPECT_GT(timeline(a).current_epoch(), block);
  EXPECT_FALSE(timeline(a).insert_wait(timeline(b), b.get(), before)); // earlier frees have no event of their own
  EXPECT_TRUE(timeline(a).insert_wait(timeline(b), b.get(), block));
  EXPECT_TRUE(timeline(b).ordered_after(timeline(a), block));
  EXPECT_TRUE(timeline(b).ordered_after(timeline(a), before)); // the event covers them too
  EXPECT_FALSE(timeline(b).ordered_after(timeline(a), timeline(a).current_epoch()));
}

TEST_F(timeline_test, poll_of_a_complete_stream_queries_two_events) {
  constexpr int many = 20;
  auto const asked = [] { return gpumem::driver_api::driver_calls("cuEventQuery"); };
  gpumem::extend::epoch newest = 0;
  for (int i = 0; i < many; ++i) newest = timeline(a).record_later(a.get());
  simulator::run_until_idle();
  auto const before = asked();
  EXPECT_FALSE(timeline(a).poll());
  EXPECT_TRUE(timeline(a).completed(newest));
  EXPECT_EQ(asked() - before, 2u);
}

TEST_F(timeline_test, poll_finds_complete_epochs_and_the_time_of_the_oldest_open_one) {
  auto const begin = gpumem::detail::sync::now();
  std::vector<gpumem::extend::epoch> recorded;
  for (int i = 0; i < 3; ++i) recorded.push_back(timeline(a).record_later(a.get()));
  simulator::step();
  auto const since = timeline(a).poll();
  EXPECT_TRUE(timeline(a).completed(recorded[0]));
  EXPECT_FALSE(timeline(a).completed(recorded[1]));
  ASSERT_TRUE(since);
  EXPECT_GE(*since, begin);
  EXPECT_LE(*since, gpumem::detail::sync::now());
  simulator::run_until_idle();
  EXPECT_FALSE(timeline(a).poll());
  EXPECT_TRUE(timeline(a).completed(recorded[2]));
}

TEST_F(timeline_test, epoch_recorded_at_a_free_is_read_by_no_other_thread) {
  // No thread reads an epoch that record_at_free() has covered: such an epoch contains no other thread's frees.
  std::vector<gpumem::extend::epoch> precise, read;
  std::thread reader{[&] {
    for (int i = 0; i < 20'000; ++i) read.push_back(timeline(a).current_epoch());
  }};
  for (int i = 0; i < 3'000; ++i) {
    if (auto const e = timeline(a).record_at_free(a.get())) precise.push_back(e);
    simulator::run_until_idle();
    timeline(a).poll();
  }
  reader.join();
  ASSERT_FALSE(precise.empty());
  std::size_t at = 0;
  for (auto const e : read) {
    while (at < precise.size() && precise[at] < e) ++at;
    if (at < precise.size()) ASSERT_NE(precise[at], e);
  }
}

TEST_F(timeline_test, failed_wait_gives_no_order) {
  auto const block = timeline(a).record_at_free(a.get());
  simulator::fail_call("cuStreamWaitEvent", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(timeline(a).insert_wait(timeline(b), b.get(), block));
  EXPECT_FALSE(timeline(b).ordered_after(timeline(a), block));
}

TEST_F(timeline_test, stream_is_ordered_after_itself) {
  EXPECT_TRUE(timeline(a).ordered_after(timeline(a), timeline(a).current_epoch()));
}

TEST_F(timeline_test, no_event_is_recorded_in_a_capture) {
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_begin_capture(a.get(), CU_STREAM_CAPTURE_MODE_GLOBAL),
                            "begin");
  EXPECT_EQ(timeline(a).record_later(a.get()), 0u);
  EXPECT_EQ(timeline(a).record_at_free(a.get()), 0u);
  CUgraph graph = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_end_capture(a.get(), &graph), "end"); // still valid
  gpumem::driver_api::driver().graph_destroy(graph);
  EXPECT_FALSE(timeline(a).has_event());
}

TEST_F(timeline_test, null_stream_records_no_event_at_the_free) {
  gpumem::device_guard const scope{first};
  auto const key = gpumem::extend::identify(gpumem::stream_ref{CUstream{}}, first);
  key.identity().timeline().prepare();
  auto const covers = key.identity().timeline().record_at_free(nullptr);
  ASSERT_NE(covers, 0u);
  EXPECT_FALSE(key.identity().timeline().insert_wait(timeline(b), b.get(), covers));
  simulator::run_until_idle();
  key.identity().timeline().poll();
  EXPECT_TRUE(key.identity().timeline().completed(covers));
}

TEST_F(timeline_test, full_event_ring_records_nothing_until_a_poll) {
  simulator::work(a, {}, 1us);
  std::size_t recorded = 0;
  for (int i = 0; i < 500; ++i) {
    timeline(a).prepare();
    if (timeline(a).record_later(a.get()) != 0) ++recorded;
  }
  EXPECT_EQ(recorded, 64u);
  simulator::run_until_idle();
  timeline(a).poll();
  EXPECT_NE(timeline(a).record_later(a.get()), 0u);
}

TEST_F(timeline_test, failed_record_leaves_no_event) {
  simulator::fail_call("cuEventRecord", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(timeline(a).record_later(a.get()), 0u);
  EXPECT_FALSE(timeline(a).has_event());
  EXPECT_FALSE(first.lost());
}

TEST_F(timeline_test, requested_event_stays_requested_until_it_is_recorded) {
  EXPECT_FALSE(timeline(a).event_request().raised());
  timeline(a).event_request().raise();
  EXPECT_TRUE(timeline(a).event_request().raised());
  timeline(a).record_later(a.get());
  EXPECT_FALSE(timeline(a).event_request().raised());
}

TEST_F(timeline_test, retired_stream_completes_its_last_frees) {
  auto const key = a.key();
  auto const freed = key.identity().timeline().current_epoch();
  { auto const gone = std::move(a); }
  EXPECT_TRUE(key.identity().timeline().has_event());
  simulator::run_until_idle();
  key.identity().timeline().poll();
  EXPECT_TRUE(key.identity().timeline().completed(freed));
  a = stream{first};
}

TEST_F(timeline_test, prepare_creates_events_again_if_another_stream_took_them) {
  simulator::work(b, {}, 1us);
  timeline(a).prepare();
  timeline(b).prepare();
  while (timeline(b).record_at_free(b.get())) {} // until it has used all events
  timeline(a).prepare();
  EXPECT_NE(timeline(a).record_at_free(a.get()), 0u);
}

TEST_F(timeline_test, failed_query_is_not_completion) {
  auto const covers = timeline(b).record_later(b.get());
  simulator::run_until_idle();
  simulator::fail_call("cuEventQuery", 1, CUDA_ERROR_LAUNCH_FAILED);
  timeline(b).poll();
  EXPECT_FALSE(timeline(b).completed(covers));
  EXPECT_TRUE(first.lost()); // in the last test, since the device stays lost
}

} // namespace
