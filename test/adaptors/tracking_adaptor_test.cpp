// tracking_adaptor: the records of live blocks, labels, stack traces, wrong frees, and the report.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

#include "../sources/recorded_misuse.hpp"
#include "../support/parking_resource.hpp"
#include "../support/thread_churn.hpp"

namespace {

using testing::HasSubstr;

class tracking : public simulated {
protected:
  gpumem::stream s_{gpumem::device{0}};
};

TEST_F(tracking, live_blocks_are_listed_in_order) {
  gpumem::tracking_adaptor subject{gpumem::cuda_resource{}};
  void* const a = subject.allocate(s_, 100);
  void* const b = subject.allocate_sync(200);
  void* const c = subject.allocate(s_, 300);
  subject.deallocate_sync(b, 200);
  auto const live = subject.outstanding();
  ASSERT_EQ(live.size(), 2u);
  EXPECT_EQ(live[0].pointer, a);
  EXPECT_EQ(live[0].bytes, 100u);
  EXPECT_EQ(live[0].sequence, 1u);
  EXPECT_EQ(live[0].stream, s_.key().identity().id());
  EXPECT_EQ(live[1].pointer, c);
  EXPECT_EQ(live[1].sequence, 3u);
  EXPECT_EQ(live[0].thread, live[1].thread);
  subject.deallocate(s_, a, 100);
  subject.deallocate(s_, c, 300);
  EXPECT_TRUE(subject.outstanding().empty());
}

TEST_F(tracking, newest_label_of_the_thread_names_the_block) {
  gpumem::tracking_adaptor subject{gpumem::cuda_resource{}};
  auto const label_of = [&] {
    auto const block = subject.acquire(s_, 1).wait();
    return subject.outstanding().front().label;
  };
  EXPECT_EQ(label_of(), "");
  {
    gpumem::tracking_label const outer{"weights"};
    EXPECT_EQ(label_of(), "weights");
    {
      gpumem::tracking_label const inner{"layer 1"};
      EXPECT_EQ(label_of(), "layer 1");
      std::thread{[&] { EXPECT_EQ(gpumem::tracking_label::current(), ""); }}.join();
    }
    EXPECT_EQ(label_of(), "weights");
  }
  EXPECT_EQ(label_of(), "");
}

[[gnu::noinline]] void* allocate_in_a_named_function(gpumem::tracking_adaptor<gpumem::cuda_resource>& from) {
  void* const p = from.allocate_sync(64);
  EXPECT_NE(p, nullptr); // so that the call above is no tail call
  return p;
}

TEST_F(tracking, stack_trace_names_the_requests_function) {
  gpumem::tracking_adaptor subject{gpumem::cuda_resource{}};
  void* const p = allocate_in_a_named_function(subject);
  auto const stack = subject.outstanding().front().stack;
  EXPECT_GT(stack.size(), 2u);
  EXPECT_LE(stack.size(), 16u);
#ifdef STACK_TRACES_NAME_FUNCTIONS
  EXPECT_THAT(subject.report(), HasSubstr("allocate_in_a_named_function"));
#else
  EXPECT_THAT(subject.report(), HasSubstr("test_adaptors_family+0x"));
#endif
  subject.deallocate_sync(p, 64);
}

#ifdef STACK_TRACES_NAME_FUNCTIONS
TEST_F(tracking, first_frame_is_the_call_of_the_adaptor) {
  gpumem::tracking_adaptor subject{gpumem::cuda_resource{}, {.stack_depth = 12}};
  void* const p = allocate_in_a_named_function(subject);
  EXPECT_THAT(subject.report(), HasSubstr("allocate_in_a_named_function"));
  EXPECT_THAT(subject.report(), testing::Not(testing::AnyOf(HasSubstr("make_node"), HasSubstr("tracked_blocks::"))));
  subject.deallocate_sync(p, 64);
}
#endif

TEST_F(tracking, depth_of_stack_traces_is_bounded) {
  for (std::size_t const depth : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{256}}) {
    gpumem::tracking_adaptor subject{gpumem::cuda_resource{}, {.stack_depth = depth}};
    auto const block = subject.acquire(s_, 1).wait();
    EXPECT_LE(subject.outstanding().front().stack.size(), depth);
  }
  EXPECT_THROW((gpumem::tracking_adaptor{gpumem::cuda_resource{}, {.stack_depth = 257}}), std::invalid_argument);
}

TEST_F(tracking, report_sums_up_equal_labels_and_stacks) {
  gpumem::tracking_adaptor subject{gpumem::cuda_resource{}, {.stack_depth = 0}};
  EXPECT_EQ(subject.report(), "gpumem: tracking_adaptor: live: 0 blocks, 0 bytes\n");
  std::vector<gpumem::allocation> held;
  {
    gpumem::tracking_label const label{"small"};
    for (int i = 0; i < 3; ++i) held.push_back(subject.acquire(s_, 100).wait());
  }
  held.push_back(subject.acquire(s_, 1000).wait());
  auto const report = subject.report();
  EXPECT_THAT(report, HasSubstr("live: 4 blocks, 1300 bytes\n"));
  auto const large = report.find("  1 block, 1000 bytes, first: number 4,");
  auto const small = report.find("  3 blocks, 300 bytes, label \"small\", first: number 1,");
  ASSERT_NE(large, std::string::npos) << report;
  ASSERT_NE(small, std::string::npos) << report;
  EXPECT_LT(large, small) << "the most bytes come first";
}

TEST_F(tracking, leaks_are_reported_when_the_last_handle_goes) {
  std::ostringstream out;
  gpumem::allocation leaked;
  {
    gpumem::tracking_adaptor subject{gpumem::cuda_resource{},
                                     {.stack_depth = 0, .report_at_end = gpumem::extend::log_sink{out}}};
    auto const copy = subject;
    gpumem::tracking_label const label{"forgotten"};
    leaked = subject.acquire(s_, 77).wait();
    subject.deallocate_sync(subject.allocate_sync(5), 5);
    EXPECT_EQ(out.str(), "");
  }
  EXPECT_THAT(out.str(), HasSubstr("1 block, 77 bytes"));
  EXPECT_THAT(out.str(), HasSubstr("forgotten"));
  leaked.reset(); // the adaptor has lived on for its block
}

TEST_F(tracking, nothing_is_reported_without_a_leak_or_a_sink) {
  std::ostringstream out;
  { gpumem::tracking_adaptor const subject{gpumem::cuda_resource{}, {.report_at_end = gpumem::extend::log_sink{out}}}; }
  EXPECT_EQ(out.str(), "");
}

TEST_F(tracking, wrong_frees_are_reported_and_do_not_reach_the_upstream) {
  test::recorded_misuse const recorded;
  gpumem::statistics_adaptor upstream{gpumem::cuda_resource{}};
  gpumem::tracking_adaptor subject{upstream};
  int foreign = 0;
  subject.deallocate_sync(&foreign, 4);
  void* const p = subject.allocate(s_, 100);
  subject.deallocate(s_, p, 50);
  EXPECT_EQ(upstream.counters().allocations.value, 1);
  subject.deallocate(s_, p, 100);
  subject.deallocate(s_, p, 100);
  EXPECT_EQ(upstream.counters().allocations.value, 0);
  ASSERT_EQ(test::seen.size(), 3u);
  EXPECT_EQ(test::seen[0].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(test::seen[0].pointer, &foreign);
  EXPECT_EQ(test::seen[1].what, gpumem::misuse::kind::wrong_size);
  EXPECT_EQ(test::seen[1].given, 50u);
  EXPECT_EQ(test::seen[1].expected, 100u);
  EXPECT_EQ(test::seen[1].events, 1u);
  EXPECT_EQ(test::seen[2].what, gpumem::misuse::kind::double_free);
  EXPECT_EQ(test::seen[2].events, 2u);
  EXPECT_EQ(test::seen[2].stream, s_.key().identity().id());
}

TEST_F(tracking, only_the_last_frees_are_remembered) {
  test::recorded_misuse const recorded;
  gpumem::tracking_adaptor subject{gpumem::cuda_resource{}, {.freed_remembered = 1}};
  void *const p = subject.allocate_sync(1), *const q = subject.allocate_sync(1);
  subject.deallocate_sync(p, 1);
  subject.deallocate_sync(q, 1);
  subject.deallocate_sync(p, 1);
  subject.deallocate_sync(q, 1);
  ASSERT_EQ(test::seen.size(), 2u);
  EXPECT_EQ(test::seen[0].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(test::seen[1].what, gpumem::misuse::kind::double_free);
}

template <class Subject>
void expect_that_waiting_is_recorded(Subject& subject, test::parking_resource const& upstream, gpumem::stream& s) {
  auto held = subject.acquire(s, 100).wait();
  std::optional<gpumem::allocation> late;
  std::thread waiting{[&] {
    gpumem::tracking_label const label{"waited"};
    late = subject.acquire(s, 50).wait();
  }};
  while (upstream.state().parked() == 0) std::this_thread::yield();
  EXPECT_EQ(subject.outstanding().size(), 1u);
  EXPECT_FALSE(subject.acquire(s, 70).wait_until(gpumem::detail::sync::now() + std::chrono::milliseconds{5}));
  held.reset();
  waiting.join();
  auto const live = subject.outstanding();
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].label, "waited");
  EXPECT_EQ(live[0].bytes, 50u);
  EXPECT_GT(live[0].stack.size(), 0u);
  late.reset();
  EXPECT_TRUE(subject.outstanding().empty());
}

TEST_F(tracking, request_that_waits_is_recorded_where_it_was_made) {
  test::parking_resource upstream{100};
  gpumem::tracking_adaptor subject{upstream};
  expect_that_waiting_is_recorded(subject, upstream, s_);
}

TEST_F(tracking, request_that_waits_is_recorded_over_an_erased_upstream) {
  test::parking_resource upstream{100};
  gpumem::tracking_adaptor subject{gpumem::any_pool{upstream}};
  expect_that_waiting_is_recorded(subject, upstream, s_);
}

TEST_F(tracking, each_block_of_a_request_for_several_is_recorded) {
  gpumem::pool_resource pool{gpumem::cuda_resource{}};
  gpumem::limiting_adaptor limited{pool, {.limit = 1000}};
  gpumem::tracking_adaptor subject{limited};
  auto held = subject.acquire(s_, 900).wait();
  std::thread waiting{[&] {
    gpumem::tracking_label const label{"both"};
    auto const two = subject.acquire_all({{s_, 300}, {s_, 400}}).wait();
    auto const live = subject.outstanding();
    ASSERT_EQ(live.size(), 2u);
    EXPECT_EQ(live[0].bytes + live[1].bytes, 700u);
    EXPECT_EQ(live[0].label, "both");
    EXPECT_EQ(live[1].label, "both");
  }};
  while (limited.statistics().waiting == 0) std::this_thread::yield();
  held.reset();
  waiting.join();
  EXPECT_TRUE(subject.outstanding().empty());
}

TEST_F(tracking, threads_allocate_and_free_at_once) {
  gpumem::tracking_adaptor subject{gpumem::pool_resource{gpumem::cuda_resource{}}, {.stack_depth = 2}};
  test::churn_by_threads(subject, 100, 5000, [&](std::size_t live) { EXPECT_GE(subject.outstanding().size(), live); });
  EXPECT_TRUE(subject.outstanding().empty());
}

} // namespace
