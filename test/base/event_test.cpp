// Events: which work they cover, which orders the library learns from them, and when.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::device;
using gpumem::event;
using gpumem::stream;
namespace simulator = gpumem::simulator;

class event_test : public test::stepped_device {
protected:
  device first{0};
  stream a{first}, b{first};
  event happened{first};
};

TEST_F(event_test, unrecorded_event_is_complete_and_orders_nothing) {
  auto const freed = a.key().identity().timeline().current_epoch();
  EXPECT_TRUE(happened.is_done());
  happened.synchronize();
  happened.make_wait(b);
  EXPECT_FALSE(b.key().identity().timeline().ordered_after(a.key().identity().timeline(), freed));
  EXPECT_FALSE(a.key().identity().timeline().completed(freed));
}

TEST_F(event_test, completes_with_the_work_before_its_record) {
  auto const freed = a.key().identity().timeline().current_epoch();
  simulator::work(a, {}, 1us);
  happened.record(a);
  simulator::work(a, {}, 1us);
  EXPECT_FALSE(happened.is_done());
  EXPECT_FALSE(a.key().identity().timeline().completed(freed));
  while (simulator::report().operations_pending > 1) simulator::step();
  EXPECT_TRUE(happened.is_done());
  EXPECT_TRUE(a.key().identity().timeline().completed(freed));
  EXPECT_FALSE(a.key().identity().timeline().completed(a.key().identity().timeline().current_epoch()));
}

TEST_F(event_test, orders_a_stream_from_the_wait_on) {
  auto& from = a.key().identity().timeline();
  auto& to = b.key().identity().timeline();
  auto const before = from.current_epoch();
  happened.record(a);
  auto const after = from.current_epoch();
  EXPECT_NE(before, after); // frees after the record belong to a new epoch
  EXPECT_FALSE(to.ordered_after(from, before));
  b.wait(happened);
  EXPECT_TRUE(to.ordered_after(from, before));
  EXPECT_FALSE(to.ordered_after(from, after));
  EXPECT_FALSE(from.ordered_after(to, 1));
}

TEST_F(event_test, second_record_replaces_the_first) {
  auto& from = a.key().identity().timeline();
  auto& to = b.key().identity().timeline();
  happened.record(a);
  auto const middle = from.current_epoch();
  happened.record(a);
  b.wait(happened);
  EXPECT_TRUE(to.ordered_after(from, middle));

  stream c{first};
  auto const of_b = to.current_epoch();
  happened.record(b); // records on another stream
  c.wait(happened);
  EXPECT_TRUE(c.key().identity().timeline().ordered_after(to, of_b));
}

TEST_F(event_test, includes_the_earlier_orders_of_its_stream) {
  stream c{first};
  auto& from = a.key().identity().timeline();
  auto const freed = from.current_epoch();
  happened.record(a);
  b.wait(happened);
  event second{first};
  second.record(b);
  c.wait(second);
  EXPECT_TRUE(c.key().identity().timeline().ordered_after(from, freed));
  auto const later = from.current_epoch();
  event third{first};
  third.record(a);
  b.wait(third); // b learns an order after `second` was recorded
  stream d{first};
  d.wait(second);
  EXPECT_FALSE(d.key().identity().timeline().ordered_after(from, later));
}

TEST_F(event_test, failed_wait_orders_nothing) {
  auto& from = a.key().identity().timeline();
  auto const freed = from.current_epoch();
  happened.record(a);
  simulator::fail_call("cuStreamWaitEvent", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(b.wait(happened), gpumem::cuda_error);
  EXPECT_FALSE(b.key().identity().timeline().ordered_after(from, freed));
  simulator::fail_call("cuEventQuery", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(happened.is_done(), gpumem::cuda_error);
  EXPECT_FALSE(from.completed(freed)); // an error is not completion
}

TEST_F(event_test, event_on_a_default_stream_gives_pools_no_order) {
  gpumem::device_guard const scope{first};
  for (auto const handle : {CUstream{}, CU_STREAM_LEGACY}) {
    gpumem::stream_ref const ref{handle};
    auto& timeline = gpumem::extend::identify(ref, first).identity().timeline();
    auto const freed = timeline.current_epoch();
    happened.record(ref);
    b.wait(happened);
    EXPECT_FALSE(b.key().identity().timeline().ordered_after(timeline, freed));
    simulator::run_until_idle();
    EXPECT_TRUE(happened.is_done());
  }
}

TEST_F(event_test, event_in_a_capture_gives_no_order_outside_it) {
  auto& from = a.key().identity().timeline();
  for (bool const known : {true, false}) {
    auto const freed = from.current_epoch();
    if (known) {
      a.begin_capture();
    } else { // without gpumem's knowledge
      gpumem::driver_api::check(
          gpumem::driver_api::driver().stream_begin_capture(a.get(), CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
    }
    happened.record(a);
    b.wait(happened); // b joins the capture
    EXPECT_FALSE(b.key().identity().timeline().ordered_after(from, freed));
    EXPECT_THROW(happened.is_done(), gpumem::acquire_error);
    happened.record(b);
    a.wait(happened);
    gpumem::driver_api::driver().graph_destroy(a.end_capture()); // the capture is complete
    EXPECT_FALSE(from.completed(freed));
  }
}

TEST_F(event_test, stream_of_another_device_can_wait) {
  stream far{device{1}};
  auto const freed = a.key().identity().timeline().current_epoch();
  happened.record(a);
  far.wait(happened);
  EXPECT_TRUE(far.key().identity().timeline().ordered_after(a.key().identity().timeline(), freed));
}

TEST_F(event_test, moved_event_keeps_its_record) {
  auto const freed = a.key().identity().timeline().current_epoch();
  happened.record(a);
  event other{std::move(happened)};
  EXPECT_FALSE(happened.valid()); // the moved-from state is tested
  b.wait(other);
  EXPECT_TRUE(b.key().identity().timeline().ordered_after(a.key().identity().timeline(), freed));
  happened = std::move(other);
  EXPECT_TRUE(happened.valid());
}

TEST_F(event_test, driver_event_of_a_destroyed_event_is_reused) {
  event{first}.record(a);
  auto const made = gpumem::driver_api::driver_calls("cuEventCreate");
  for (int i = 0; i < 10; ++i) event{first}.record(a);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuEventCreate"), made);
}

// An event of this test whose driver event an earlier owner has recorded.
class reused_event : public event_test {
protected:
  void record_and_end_an_event() {
    simulator::work(a, {}, 1us, [this] { ++earlier_runs_; });
    event{first}.record(a);
  }
  int earlier_runs_ = 0;
};

TEST_F(reused_event, has_no_record_before_its_own) {
  record_and_end_an_event();
  event fresh{first};
  auto const asked = gpumem::driver_api::driver_calls();
  EXPECT_TRUE(fresh.is_done());
  fresh.synchronize();
  fresh.make_wait(b);
  b.wait(fresh);
  EXPECT_EQ(gpumem::driver_api::driver_calls() - asked, 0u);
  gpumem::completion(fresh).wait();
  auto const wait_for = [](event const& one) -> gpumem::task<> { co_await gpumem::completion(one); };
  gpumem::sync_wait(wait_for(fresh));
  EXPECT_EQ(earlier_runs_, 0);
  fresh.record(a);
  EXPECT_FALSE(fresh.is_done());
}

TEST_F(reused_event, gives_out_a_handle_without_a_record) {
  auto const& driver = gpumem::driver_api::driver();
  record_and_end_an_event();
  {
    event fresh{first};
    auto const handle = fresh.get();
    EXPECT_EQ(fresh.get(), handle);
    EXPECT_EQ(driver.event_query(handle), CUDA_SUCCESS);
    EXPECT_TRUE(fresh.is_done());
    EXPECT_EQ(driver.event_record(handle, a.get()), CUDA_SUCCESS); // a record without gpumem's knowledge counts
    EXPECT_FALSE(fresh.is_done());
    fresh.record(a);
    EXPECT_EQ(fresh.get(), handle);
    event moved{std::move(fresh)};
    EXPECT_EQ(moved.get(), handle);
    EXPECT_THROW(fresh.get(), std::invalid_argument); // NOLINT(bugprone-use-after-move): that is tested
  }
  auto const ended = gpumem::driver_api::driver_calls("cuEventDestroy");
  for (int i = 0; i < 10; ++i) static_cast<void>(event{first}.get());
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuEventDestroy"), ended + 10)
      << "handles that were given out are not kept";
}

TEST_F(reused_event, joins_no_capture_of_an_earlier_owner) {
  a.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
  event{first}.record(a);
  event fresh{first};
  EXPECT_TRUE(fresh.is_done());
  fresh.make_wait(b);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(gpumem::driver_api::driver().stream_is_capturing(b.get(), &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(a.end_capture()), CUDA_SUCCESS);
}

TEST_F(reused_event, failed_first_record_leaves_no_record) {
  record_and_end_an_event();
  event fresh{first};
  simulator::fail_call("cuEventRecord", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(fresh.record(b), gpumem::cuda_error);
  EXPECT_TRUE(fresh.is_done());
  auto const waits = gpumem::driver_api::driver_calls("cuStreamWaitEvent");
  fresh.make_wait(b);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamWaitEvent"), waits);
}

} // namespace
