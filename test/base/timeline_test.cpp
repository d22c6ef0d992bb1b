// Epochs, evidence, and the clocks of streams.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <chrono>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::device;
using gpumem::stream;
using timeline = std::remove_reference_t<decltype(std::declval<gpumem::stream_key const&>().order())>;
using vector_clock = decltype(std::declval<timeline const&>().snapshot());
namespace simulator = gpumem::simulator;

TEST(vector_clock, keeps_the_newest_epoch_of_each_stream) {
  vector_clock clock;
  EXPECT_EQ(clock.at(3), 0u);
  clock.raise(3, 7);
  clock.raise(1, 2);
  clock.raise(3, 5); // older: stays
  EXPECT_EQ(clock.at(3), 7u);
  EXPECT_EQ(clock.at(1), 2u);
  EXPECT_EQ(clock.at(2), 0u);
}

TEST(vector_clock, joins_to_the_newer_of_each) {
  vector_clock a, b;
  a.raise(1, 5);
  a.raise(2, 1);
  b.raise(2, 9);
  b.raise(4, 3);
  a.join(b);
  EXPECT_EQ(a.at(1), 5u);
  EXPECT_EQ(a.at(2), 9u);
  EXPECT_EQ(a.at(4), 3u);
  EXPECT_EQ(b.at(1), 0u);
}

class timeline_test : public test::stepped_device {
protected:
  // What an earlier test has left on a pooled stream is seen complete first.
  void SetUp() override {
    simulator::run_until_idle();
    for (auto* s : {&a, &b}) order(*s).poll();
  }
  timeline& order(stream& s) { return s.key().order(); }
  device first{0};
  stream a{first}, b{first};
};

TEST_F(timeline_test, late_evidence_completes_everything_before_the_record) {
  simulator::work(a, {}, 1us);
  auto const freed = order(a).now();
  auto const covers = order(a).record_late(a.get());
  EXPECT_GE(covers, freed);
  EXPECT_GT(order(a).now(), covers);
  EXPECT_TRUE(order(a).has_evidence());
  EXPECT_EQ(order(a).newest_evidence(), covers);
  order(a).poll();
  EXPECT_FALSE(order(a).completed(freed));
  simulator::run_until_idle();
  order(a).poll();
  EXPECT_TRUE(order(a).completed(freed));
  EXPECT_FALSE(order(a).has_evidence());
}

TEST_F(timeline_test, late_evidence_is_never_waited_for) {
  auto const covers = order(a).record_late(a.get());
  EXPECT_FALSE(order(a).order_before(order(b), b.get(), covers));
  EXPECT_FALSE(order(b).ordered_after(order(a), covers));
}

TEST_F(timeline_test, precise_evidence_is_waited_for_in_its_own_epoch) {
  auto const before = order(a).now();
  auto const block = order(a).record_precise(a.get());
  EXPECT_GT(block, before); // an epoch in which nobody else has freed
  EXPECT_GT(order(a).now(), block);
  EXPECT_FALSE(order(a).order_before(order(b), b.get(), before)); // what was freed earlier has no evidence of its own
  EXPECT_TRUE(order(a).order_before(order(b), b.get(), block));
  EXPECT_TRUE(order(b).ordered_after(order(a), block));
  EXPECT_TRUE(order(b).ordered_after(order(a), before)); // the event covers it, too
  EXPECT_FALSE(order(b).ordered_after(order(a), order(a).now()));
}

TEST_F(timeline_test, a_poll_of_a_complete_stream_asks_two_of_its_events) {
  constexpr int many = 20;
  auto const asked = [] { return gpumem::driver_calls("cuEventQuery"); };
  gpumem::epoch newest = 0;
  for (int i = 0; i < many; ++i) newest = order(a).record_late(a.get());
  simulator::run_until_idle();
  auto const before = asked();
  EXPECT_FALSE(order(a).poll());
  EXPECT_TRUE(order(a).completed(newest));
  EXPECT_EQ(asked() - before, 2u);
}

TEST_F(timeline_test, a_poll_finds_what_is_complete_and_since_when_the_rest_is_open) {
  auto const begin = gpumem::sync::now();
  std::vector<gpumem::epoch> recorded;
  for (int i = 0; i < 3; ++i) recorded.push_back(order(a).record_late(a.get()));
  simulator::step();
  auto const since = order(a).poll();
  EXPECT_TRUE(order(a).completed(recorded[0]));
  EXPECT_FALSE(order(a).completed(recorded[1]));
  ASSERT_TRUE(since);
  EXPECT_GE(*since, begin);
  EXPECT_LE(*since, gpumem::sync::now());
  simulator::run_until_idle();
  EXPECT_FALSE(order(a).poll());
  EXPECT_TRUE(order(a).completed(recorded[2]));
}

TEST_F(timeline_test, no_epoch_read_by_another_thread_is_a_precise_one) {
  // Whoever reads now() while others record precisely has an epoch to itself, or shares it with late frees only.
  std::vector<gpumem::epoch> precise, read;
  std::thread reader{[&] {
    for (int i = 0; i < 20'000; ++i) read.push_back(order(a).now());
  }};
  for (int i = 0; i < 3'000; ++i) {
    if (auto const e = order(a).record_precise(a.get())) precise.push_back(e);
    simulator::run_until_idle();
    order(a).poll();
  }
  reader.join();
  ASSERT_FALSE(precise.empty());
  std::size_t at = 0;
  for (auto const e : read) {
    while (at < precise.size() && precise[at] < e) ++at;
    if (at < precise.size()) ASSERT_NE(precise[at], e);
  }
}

TEST_F(timeline_test, a_wait_that_fails_is_no_order) {
  auto const block = order(a).record_precise(a.get());
  simulator::fail_call("cuStreamWaitEvent", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(order(a).order_before(order(b), b.get(), block));
  EXPECT_FALSE(order(b).ordered_after(order(a), block));
}

TEST_F(timeline_test, is_always_ordered_after_itself) { EXPECT_TRUE(order(a).ordered_after(order(a), order(a).now())); }

TEST_F(timeline_test, records_nothing_in_a_capture) {
  gpumem::check(gpumem::driver().stream_begin_capture(a.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  EXPECT_EQ(order(a).record_late(a.get()), 0u);
  EXPECT_EQ(order(a).record_precise(a.get()), 0u);
  CUgraph graph = nullptr;
  gpumem::check(gpumem::driver().stream_end_capture(a.get(), &graph), "end"); // not spoiled
  gpumem::driver().graph_destroy(graph);
  EXPECT_FALSE(order(a).has_evidence());
}

TEST_F(timeline_test, on_the_null_stream_has_late_evidence_only) {
  gpumem::current_device const scope{first};
  auto const key = gpumem::identify(gpumem::stream_ref{CUstream{}}, first);
  key.order().prepare();
  auto const covers = key.order().record_precise(nullptr);
  ASSERT_NE(covers, 0u);
  EXPECT_FALSE(key.order().order_before(order(b), b.get(), covers));
  simulator::run_until_idle();
  key.order().poll();
  EXPECT_TRUE(key.order().completed(covers));
}

TEST_F(timeline_test, with_its_evidence_full_records_no_more_until_polled) {
  simulator::work(a, {}, 1us);
  std::size_t recorded = 0;
  for (int i = 0; i < 500; ++i) {
    order(a).prepare();
    if (order(a).record_late(a.get()) != 0) ++recorded;
  }
  EXPECT_EQ(recorded, 64u);
  simulator::run_until_idle();
  order(a).poll();
  EXPECT_NE(order(a).record_late(a.get()), 0u);
}

TEST_F(timeline_test, a_record_that_fails_leaves_no_evidence) {
  simulator::fail_call("cuEventRecord", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(order(a).record_late(a.get()), 0u);
  EXPECT_FALSE(order(a).has_evidence());
  EXPECT_FALSE(first.lost());
}

TEST_F(timeline_test, counts_frees_until_a_record_is_due) {
  order(a).record_late(a.get());
  for (int i = 1; i < 1024; ++i) ASSERT_FALSE(order(a).count_unrecorded(1, 1, 1 << 20)) << i;
  EXPECT_TRUE(order(a).count_unrecorded(1, 1, 1 << 20));
  order(a).record_late(a.get());
  EXPECT_FALSE(order(a).count_unrecorded(1, 100, 1000));
  EXPECT_TRUE(order(a).count_unrecorded(1, 900, 1000)); // by bytes
}

TEST_F(timeline_test, is_asked_until_it_has_recorded) {
  EXPECT_FALSE(order(a).asked());
  order(a).ask();
  EXPECT_TRUE(order(a).asked());
  order(a).record_late(a.get());
  EXPECT_FALSE(order(a).asked());
}

TEST_F(timeline_test, of_a_retired_stream_completes_its_tail) {
  auto const key = a.key();
  auto const freed = key.order().now();
  { auto const gone = std::move(a); }
  EXPECT_TRUE(key.order().has_evidence());
  simulator::run_until_idle();
  key.order().poll();
  EXPECT_TRUE(key.order().completed(freed));
  a = stream{first};
}

TEST_F(timeline_test, prepared_again_when_another_has_taken_the_spare_events) {
  simulator::work(b, {}, 1us);
  order(a).prepare();
  order(b).prepare();
  while (order(b).record_precise(b.get())) {} // with all that there are
  order(a).prepare();
  EXPECT_NE(order(a).record_precise(a.get()), 0u);
}

TEST_F(timeline_test, an_error_of_a_query_is_not_completion) {
  auto const covers = order(b).record_late(b.get());
  simulator::run_until_idle();
  simulator::fail_call("cuEventQuery", 1, CUDA_ERROR_LAUNCH_FAILED);
  order(b).poll();
  EXPECT_FALSE(order(b).completed(covers));
  EXPECT_TRUE(first.lost()); // the last test: the device stays lost
}

} // namespace
