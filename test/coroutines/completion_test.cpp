// gpumem::completion, on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "../support/allocation_count.hpp"
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::completion;
using gpumem::outcome;
using gpumem::sync_wait;
using gpumem::task;
using test::manual_executor;
namespace simulator = gpumem::simulator;

class completion_test : public test::stepped_device {
protected:
  void SetUp() override { stream.emplace(gpumem::device{0}); }
  gpumem::stream& s() { return *stream; }
  std::optional<gpumem::stream> stream;
};

// Spins until the reactor has made `queries` more event queries.
void let_poll(std::uint64_t queries) {
  auto const from = gpumem::driver_api::driver_calls("cuEventQuery");
  while (gpumem::driver_api::driver_calls("cuEventQuery") < from + queries) std::this_thread::yield();
}

TEST_F(completion_test, idle_stream_is_complete_at_once_without_host_allocation) {
  auto const records = gpumem::driver_api::driver_calls("cuEventRecord");
  auto body = [&]() -> task<std::size_t> {
    co_await completion(s()); // warm-up: what the first use creates
    auto const before = test::host_allocations();
    for (int i = 0; i < 100; ++i) co_await completion(s());
    co_return test::host_allocations() - before;
  };
  EXPECT_EQ(sync_wait(body()), 0u);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuEventRecord"),
            records); // it queries first, and there was nothing to wait for
}

TEST_F(completion_test, resumes_after_the_work_is_complete) {
  bool worked = false;
  simulator::work(s(), {}, 1us, [&] { worked = true; });
  manual_executor executor;
  bool resumed = false;
  auto body = [&]() -> task<> {
    co_await completion(s(), {.resume_on = &executor});
    EXPECT_TRUE(worked);
    resumed = true;
  };
  auto const running = test::start(body());
  let_poll(10);
  EXPECT_FALSE(executor.posted());
  simulator::run_until_idle();
  executor.wait_for_post();
  EXPECT_FALSE(resumed); // only the executor resumes it
  EXPECT_TRUE(executor.run_one());
  EXPECT_TRUE(resumed);
}

TEST_F(completion_test, resumes_on_the_library_thread_by_default) {
  simulator::work(s(), {}, 1us);
  std::atomic<bool> armed{false};
  auto where = [&]() -> task<std::thread::id> {
    armed = true;
    co_await completion(s());
    co_return std::this_thread::get_id();
  };
  std::thread device{[&] {
    while (!armed) std::this_thread::yield();
    let_poll(3);
    simulator::run_until_idle();
  }};
  auto const resumed_on = sync_wait(where());
  device.join();
  auto body = [&]() -> task<std::thread::id> {
    co_await test::hop{gpumem::default_executor()};
    co_return std::this_thread::get_id();
  };
  EXPECT_EQ(resumed_on, sync_wait(body()));
  EXPECT_NE(resumed_on, std::this_thread::get_id());
}

TEST_F(completion_test, waits_only_for_work_enqueued_before_the_await) {
  simulator::work(s(), {}, 1us);
  manual_executor executor;
  auto body = [&]() -> task<> { co_await completion(s(), {.resume_on = &executor}); };
  auto const running = test::start(body());
  simulator::work(s(), {}, 1us);
  while (simulator::report().operations_pending > 1) simulator::step();
  executor.wait_for_post();
  EXPECT_EQ(simulator::report().operations_pending, 1u);
  executor.run_one();
  EXPECT_TRUE(running.done());
}

TEST_F(completion_test, completed_wait_marks_earlier_frees_complete) {
  auto& timeline = s().key().identity().timeline();
  simulator::work(s(), {}, 1us);
  auto const freed_now = timeline.current_epoch();
  manual_executor executor;
  auto body = [&]() -> task<> { co_await completion(s(), {.resume_on = &executor}); };
  auto const running = test::start(body());
  EXPECT_FALSE(timeline.completed(freed_now));
  EXPECT_GT(timeline.current_epoch(), freed_now); // later frees are not covered
  simulator::run_until_idle();
  executor.wait_for_post();
  EXPECT_TRUE(timeline.completed(freed_now));
  EXPECT_FALSE(timeline.completed(timeline.current_epoch()));
  executor.run_one();

  auto const freed_later = timeline.current_epoch();
  sync_wait(completion(s())); // complete at once, and the library learns that too
  EXPECT_TRUE(timeline.completed(freed_later));
  auto const freed_last = timeline.current_epoch();
  completion(s()).wait();
  EXPECT_TRUE(timeline.completed(freed_last));
}

TEST_F(completion_test, waits_for_the_work_before_an_event) {
  gpumem::event event{gpumem::device{0}};
  EXPECT_NO_THROW(sync_wait(completion(event))); // never recorded: nothing to wait for
  simulator::work(s(), {}, 1us);
  auto const freed = s().key().identity().timeline().current_epoch();
  event.record(s());
  manual_executor executor;
  auto body = [&]() -> task<> { co_await completion(event, {.resume_on = &executor}); };
  auto const running = test::start(body());
  let_poll(5);
  EXPECT_FALSE(executor.posted());
  simulator::run_until_idle();
  executor.wait_for_post();
  EXPECT_TRUE(s().key().identity().timeline().completed(freed));
  executor.run_one();
  EXPECT_TRUE(running.done());
  EXPECT_NO_THROW(completion(event).wait());
}

TEST_F(completion_test, thread_can_wait_without_a_coroutine) {
  bool worked = false;
  simulator::work(s(), {}, 1us, [&] { worked = true; });
  completion(s()).wait();
  EXPECT_TRUE(worked);
}

TEST_F(completion_test, every_kind_of_stream_can_be_awaited) {
  gpumem::device_guard const scope{gpumem::device{0}};
  CUstream raw = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&raw, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  for (auto const stream : {gpumem::stream_ref{raw}, gpumem::stream_ref{CUstream{}},
                            gpumem::stream_ref{CU_STREAM_LEGACY}, gpumem::stream_ref{CU_STREAM_PER_THREAD}}) {
    bool worked = false;
    simulator::work(stream, {}, 1us, [&] { worked = true; });
    manual_executor executor;
    auto body = [&]() -> task<> { co_await completion(stream, {.resume_on = &executor}); };
    auto const running = test::start(body());
    EXPECT_FALSE(running.done());
    simulator::run_until_idle();
    executor.wait_for_post();
    executor.run_one();
    EXPECT_TRUE(running.done());
    EXPECT_TRUE(worked);
  }
}

TEST_F(completion_test, capturing_stream_is_refused_and_its_capture_stays_valid) {
  for (bool const known : {true, false}) {
    if (known) {
      s().begin_capture();
    } else {
      gpumem::driver_api::check(
          gpumem::driver_api::driver().stream_begin_capture(s().get(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
    }
    for (bool const blocking : {true, false}) {
      try {
        if (blocking) {
          completion(s()).wait();
        } else {
          sync_wait(completion(s()));
        }
        ADD_FAILURE() << "a capturing stream was waited for";
      } catch (gpumem::acquire_error const& e) { EXPECT_EQ(e.reason(), outcome::capture_unsupported); }
    }
    gpumem::driver_api::check(gpumem::driver_api::driver().graph_destroy(s().end_capture()),
                              "cuGraphDestroy"); // the capture was not invalidated
  }
}

TEST_F(completion_test, event_recorded_in_a_capture_is_refused) {
  gpumem::event event{gpumem::device{0}};
  s().begin_capture();
  event.record(s());
  EXPECT_THROW(sync_wait(completion(event)), gpumem::acquire_error);
  EXPECT_THROW(event.synchronize(), gpumem::acquire_error);
  gpumem::driver_api::check(gpumem::driver_api::driver().graph_destroy(s().end_capture()), "cuGraphDestroy");
}

TEST_F(completion_test, wait_works_during_a_global_capture_of_another_thread) {
  gpumem::stream captured{gpumem::device{0}};
  captured.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
  simulator::work(s(), {}, 1us);
  manual_executor executor;
  auto body = [&]() -> task<> { co_await completion(s(), {.resume_on = &executor}); };
  auto const running = test::start(body());
  let_poll(5);
  simulator::run_until_idle();
  executor.wait_for_post();
  executor.run_one();
  gpumem::driver_api::check(gpumem::driver_api::driver().graph_destroy(captured.end_capture()), "cuGraphDestroy");
}

TEST_F(completion_test, stop_ends_a_wait_before_and_during_it_but_not_after) {
  std::stop_source before, during, after;
  before.request_stop();
  auto reason = [&](gpumem::executor* where, std::stop_token token) -> task<outcome> {
    try {
      co_await completion(s(), {.resume_on = where}, token);
    } catch (gpumem::acquire_error const& e) { co_return e.reason(); }
    co_return outcome::granted;
  };
  EXPECT_EQ(sync_wait(reason(nullptr, before.get_token())), outcome::stopped);

  simulator::work(s(), {}, 1us);
  manual_executor executor;
  auto told = outcome::closed;
  auto body = [&](std::stop_token token) -> task<> { told = co_await reason(&executor, token); };
  {
    auto const running = test::start(body(during.get_token()));
    let_poll(3);
    during.request_stop();
    EXPECT_TRUE(executor.posted());
    EXPECT_EQ(told, outcome::closed);
    EXPECT_TRUE(executor.run_one());
    EXPECT_EQ(told, outcome::stopped);
  }
  manual_executor second;
  auto other = [&](std::stop_token token) -> task<> { told = co_await reason(&second, token); };
  auto const running = test::start(other(after.get_token()));
  simulator::run_until_idle();
  second.wait_for_post();
  after.request_stop(); // too late: the wait has succeeded
  second.run_one();
  EXPECT_EQ(told, outcome::granted);
}

TEST_F(completion_test, stop_inside_the_stop_callback_constructor_ends_the_wait) {
  simulator::work(s(), {}, 1us);
  try {
    sync_wait(completion(s(), {}, test::late_token{}));
    ADD_FAILURE() << "it was not stopped";
  } catch (gpumem::acquire_error const& e) { EXPECT_EQ(e.reason(), outcome::stopped); }
}

TEST_F(completion_test, destroyed_wait_is_not_resumed) {
  manual_executor executor;
  auto body = [&]() -> task<> {
    co_await completion(s(), {.resume_on = &executor});
    ADD_FAILURE() << "it was resumed";
  };
  simulator::work(s(), {}, 1us);
  {
    auto const armed = test::start(body());
    let_poll(3);
  }
  {
    auto const posted = test::start(body());
    simulator::run_until_idle();
    executor.wait_for_post();
  }
  EXPECT_FALSE(executor.run_one());
}

TEST_F(completion_test, events_are_reused) {
  manual_executor executor;
  auto round = [&] {
    simulator::work(s(), {}, 1us);
    auto body = [&]() -> task<> { co_await completion(s(), {.resume_on = &executor}); };
    auto const running = test::start(body());
    simulator::run_until_idle();
    while (!executor.run_one()) std::this_thread::yield();
  };
  round();
  auto const made = gpumem::driver_api::driver_calls("cuEventCreate");
  for (int i = 0; i < 100; ++i) round();
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuEventCreate"), made);
}

TEST_F(completion_test, query_error_ends_only_its_own_wait) {
  simulator::work(s(), {}, 1us);
  manual_executor executor;
  CUresult told = CUDA_SUCCESS;
  auto body = [&]() -> task<> {
    try {
      co_await completion(s(), {.resume_on = &executor});
    } catch (gpumem::cuda_error const& e) { told = static_cast<CUresult>(e.status()); }
  };
  auto const running = test::start(body());
  simulator::fail_call("cuEventQuery", 1, CUDA_ERROR_INVALID_HANDLE);
  executor.wait_for_post();
  executor.run_one();
  EXPECT_EQ(told, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_FALSE(gpumem::device{0}.lost());
  EXPECT_FALSE(s().key().identity().timeline().completed(
      s().key().identity().timeline().current_epoch())); // an error is not completion
}

TEST_F(completion_test, failed_event_record_throws_at_the_await) {
  simulator::work(s(), {}, 1us);
  for (auto const* call : {"cuStreamIsCapturing", "cuStreamQuery", "cuEventRecord"}) {
    simulator::fail_call(call, 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_THROW(sync_wait(completion(s())), gpumem::cuda_error) << call;
  }
  EXPECT_FALSE(gpumem::device{0}.lost());
}

// In the last test, since the device stays lost.
TEST_F(completion_test, lost_device_ends_all_waits) {
  simulator::work(s(), {}, 1us);
  gpumem::stream other{gpumem::device{0}};
  simulator::work(other, {}, 1us);
  int told = 0;
  test::manual_executor executor;
  auto body = [&](gpumem::stream_ref stream) -> task<> {
    try {
      co_await completion(stream, {.resume_on = &executor});
    } catch (gpumem::cuda_error const& e) {
      if (static_cast<CUresult>(e.status()) == CUDA_ERROR_ILLEGAL_ADDRESS) ++told;
    }
  };
  std::vector<test::started> running;
  for (int i = 0; i < 50; ++i) running.push_back(test::start(body(i % 2 ? s() : other)));
  let_poll(3);
  simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  while (told < 50) executor.run_one();
  EXPECT_TRUE(gpumem::device{0}.lost());
  EXPECT_EQ(gpumem::device{0}.lost_error(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THROW(sync_wait(completion(s())), gpumem::cuda_error);
  EXPECT_THROW(completion(s()).wait(), gpumem::cuda_error);
}

} // namespace
