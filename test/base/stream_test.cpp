// Identifying streams: which handle means which stream.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::device;
using gpumem::extend::identify;
using gpumem::stream;
using gpumem::extend::stream_key;
using gpumem::stream_ref;
using stream_kind = decltype(std::declval<stream_key const&>().identity().timeline().kind());

class stream_test : public testing::Test {
protected:
  // Makes a stream that the caller owns.
  CUstream make_foreign(device where = device{0}) {
    gpumem::device_guard const scope{where};
    CUstream handle = nullptr;
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&handle, CU_STREAM_NON_BLOCKING),
                              "cuStreamCreate");
    return handle;
  }
  void destroy(CUstream handle) {
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_destroy(handle), "cuStreamDestroy");
  }

  device first{0}, second{1};
  gpumem::device_guard current{first};
};

TEST_F(stream_test, own_stream_is_identified_without_a_driver_call) {
  stream const s{first};
  stream_ref const bare{s.get()};
  auto const before = gpumem::driver_api::driver_calls();
  auto const key = identify(bare, first);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), before);
  EXPECT_EQ(key, s.key());
  EXPECT_EQ(identify(bare), key);
  EXPECT_TRUE(key.identity().has_handle());
  EXPECT_FALSE(key.identity().is_host());
  EXPECT_EQ(key.identity().handle(), s.get());
  EXPECT_EQ(s.device(), first);
  EXPECT_TRUE(key.by_identity().identity().has_handle()); // it lives until the process ends
}

TEST_F(stream_test, destroyed_own_stream_is_reused_with_its_identity) {
  CUstream handle = nullptr;
  std::optional<stream_key> key;
  {
    stream s{first};
    handle = s.get();
    key = s.key();
  }
  auto const made = gpumem::driver_api::driver_calls("cuStreamCreateWithPriority");
  stream const again{first};
  EXPECT_EQ(again.get(), handle);
  EXPECT_EQ(again.key(), *key);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamCreateWithPriority"), made);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamDestroy"), 0u);
  stream const other{first}, elsewhere{second}, urgent{first, -1};
  EXPECT_NE(other.key(), again.key());
  EXPECT_EQ(elsewhere.device(), second);
  EXPECT_NE(urgent.key(), other.key());
}

TEST_F(stream_test, moved_stream_is_returned_once) {
  stream a{first};
  auto const key = a.key();
  stream b{std::move(a)};
  EXPECT_EQ(b.key(), key);
  stream c{first};
  c = std::move(b); // c's former stream returns to the pool
  EXPECT_EQ(c.key(), key);
  stream const d{first}, e{first};
  EXPECT_NE(d.key(), c.key());
  EXPECT_NE(e.key(), c.key());
  EXPECT_NE(d.key(), e.key());
}

TEST_F(stream_test, foreign_stream_is_identified_in_two_driver_calls) {
  auto const handle = make_foreign();
  auto const key = identify(stream_ref{handle}, first);
  auto const before = gpumem::driver_api::driver_calls();
  EXPECT_EQ(identify(stream_ref{handle}, first), key);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), before + 2);
  EXPECT_EQ(key.by_identity().identity().has_handle(), false); // it may be destroyed
  EXPECT_EQ(key.identity().timeline().device(), 0);
  destroy(handle);
}

// The timeline of a destroyed stream is reused for the next one, with later epochs.
TEST_F(stream_test, recycled_handle_is_another_stream) {
  auto const handle = make_foreign();
  auto const key = identify(stream_ref{handle}, first);
  auto const id = key.identity().id();
  auto const ended = key.identity().end_use(1);
  gpumem::simulator::run_until_idle();
  destroy(handle);
  auto const recycled = make_foreign();
  ASSERT_EQ(recycled, handle);
  auto const next = identify(stream_ref{recycled}, first);
  EXPECT_NE(next.identity().id(), id);
  EXPECT_EQ(next, key) << "all work of the first stream is complete";
  EXPECT_GT(next.identity().timeline().current_epoch(), ended);
  EXPECT_TRUE(next.identity().timeline().completed(ended));
  EXPECT_FALSE(next.identity().timeline().completed(next.identity().timeline().current_epoch()));
  destroy(recycled);
}

TEST_F(stream_test, adopted_stream_is_identified_without_a_driver_call) {
  auto const handle = make_foreign();
  auto const key = identify(stream_ref{handle}, first);
  auto const id = key.identity().id();
  {
    auto const promised = stream::adopt(handle);
    EXPECT_EQ(promised.key(), key);
    auto const before = gpumem::driver_api::driver_calls();
    EXPECT_EQ(identify(stream_ref{handle}, first), key);
    EXPECT_EQ(gpumem::driver_api::driver_calls(), before);
    EXPECT_TRUE(key.by_identity().identity().has_handle());
  }
  EXPECT_FALSE(key.by_identity().identity().has_handle());
  destroy(handle);
  auto const recycled = make_foreign();
  ASSERT_EQ(recycled, handle);
  EXPECT_NE(identify(stream_ref{recycled}, first).identity().id(),
            id); // the table must not mistake it for the old stream
  destroy(recycled);
}

TEST_F(stream_test, stream_adopted_twice_stays_adopted_until_both_end) {
  auto const handle = make_foreign();
  std::optional<stream> a{stream::adopt(handle)}, b{stream::adopt(handle)};
  auto const key = a->key();
  a.reset();
  auto const before = gpumem::driver_api::driver_calls();
  EXPECT_EQ(identify(stream_ref{handle}, first), key);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), before);
  b.reset();
  EXPECT_FALSE(key.by_identity().identity().has_handle());
  destroy(handle);
}

TEST_F(stream_test, adopted_own_stream_stays_own) {
  stream const s{first};
  { auto const promised = stream::adopt(s.get()); }
  auto const before = gpumem::driver_api::driver_calls();
  EXPECT_EQ(identify(stream_ref{s.get()}, first), s.key());
  EXPECT_EQ(gpumem::driver_api::driver_calls(), before);
}

TEST_F(stream_test, default_stream_cannot_be_adopted) {
  for (auto const handle : {CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    EXPECT_THROW((void)stream::adopt(handle), std::invalid_argument);
  }
}

TEST_F(stream_test, null_stream_differs_by_thread_and_device) {
  stream_ref const null{CUstream{}};
  auto const mine = identify(null, first);
  EXPECT_EQ(identify(null, first), mine);
  EXPECT_EQ(identify(null), mine);
  EXPECT_EQ(mine.identity().timeline().kind(), stream_kind::null);
  std::optional<stream_key> theirs, elsewhere;
  std::thread{[&] { theirs = identify(null, first); }}.join();
  {
    gpumem::device_guard const scope{second};
    elsewhere = identify(null, second);
  }
  EXPECT_NE(*theirs, mine);
  EXPECT_NE(*elsewhere, mine);
  EXPECT_NE(*elsewhere, *theirs);
}

// The timeline of an ended thread is reused for a later one, with later epochs.
TEST_F(stream_test, null_stream_of_an_ended_thread_is_complete) {
  stream_ref const null{CUstream{}};
  gpumem::extend::epoch ended = 0, later = 0;
  std::optional<stream_key> theirs;
  std::thread{[&] {
    theirs = identify(null, first);
    ended = theirs->identity().end_use(1);
  }}.join();
  gpumem::simulator::run_until_idle();
  std::thread{[&] {
    auto const key = identify(null, first);
    EXPECT_EQ(key, *theirs);
    later = key.identity().timeline().current_epoch();
  }}.join();
  EXPECT_GT(later, ended);
  EXPECT_TRUE(theirs->identity().timeline().completed(ended));
}

TEST_F(stream_test, legacy_stream_is_one_per_device) {
  stream_ref const legacy{CU_STREAM_LEGACY};
  auto const mine = identify(legacy, first);
  std::optional<stream_key> theirs, elsewhere;
  std::thread{[&] { theirs = identify(legacy, first); }}.join();
  {
    gpumem::device_guard const scope{second};
    elsewhere = identify(legacy, second);
  }
  EXPECT_EQ(*theirs, mine);
  EXPECT_NE(*elsewhere, mine);
  EXPECT_NE(identify(stream_ref{CUstream{}}, first), mine);
}

TEST_F(stream_test, per_thread_stream_is_one_per_thread) {
  stream_ref const own{CU_STREAM_PER_THREAD};
  auto const mine = identify(own, first);
  EXPECT_EQ(identify(own, first), mine);
  EXPECT_EQ(mine.identity().timeline().kind(), stream_kind::per_thread);
  std::optional<stream_key> theirs;
  std::thread{[&] {
    gpumem::device_guard const scope{first};
    theirs = identify(own, first);
  }}.join();
  EXPECT_NE(*theirs, mine);
}

TEST_F(stream_test, default_stream_of_a_device_that_is_not_current_is_rejected) {
  for (auto const handle : {CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    EXPECT_THROW(identify(stream_ref{handle}, second), std::invalid_argument);
    EXPECT_NO_THROW(identify(stream_ref{handle}, first));
  }
}

TEST_F(stream_test, destroyed_stream_cannot_be_identified) {
  auto const handle = make_foreign();
  destroy(handle);
  EXPECT_THROW(identify(stream_ref{handle}, first), gpumem::cuda_error);
  EXPECT_EQ(gpumem::simulator::take_findings().size(), 1u); // the simulated device saw the error too
}

TEST_F(stream_test, capturing_stream_is_recognized) {
  stream own{first};
  EXPECT_FALSE(own.key().identity().capturing());
  own.begin_capture();
  EXPECT_TRUE(identify(own, first).identity().capturing());
  gpumem::driver_api::driver().graph_destroy(own.end_capture());
  EXPECT_FALSE(own.key().identity().capturing());

  auto const handle = make_foreign();
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_begin_capture(handle, CU_STREAM_CAPTURE_MODE_GLOBAL),
                            "begin");
  EXPECT_TRUE(identify(stream_ref{handle}, first).identity().capturing());
  CUgraph graph = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_end_capture(handle, &graph),
                            "end"); // identifying the stream did not invalidate the capture
  gpumem::driver_api::driver().graph_destroy(graph);
  EXPECT_FALSE(identify(stream_ref{handle}, first).identity().capturing());
  destroy(handle);
}

// The capture that a stream begins and that an exception leaves open: the destructor ends it.
TEST_F(stream_test, capture_ends_with_its_stream) {
  auto const made = gpumem::driver_api::driver_calls("cuStreamCreateWithPriority");
  CUstream handle = nullptr;
  for (int i = 0; i < 20; ++i) {
    stream unwound{first, -3};
    if (i == 0) handle = unwound.get();
    EXPECT_EQ(unwound.get(), handle);
    EXPECT_FALSE(unwound.key().identity().capturing());
    unwound.begin_capture();
    gpumem::simulator::work(unwound, {});
    if (i % 2) gpumem::driver_api::driver().stream_query(handle); // invalidates the capture
  }
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamCreateWithPriority"), made + 1);
  auto moved = stream{first, -3};
  moved.begin_capture();
  stream const owner{std::move(moved)};
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(gpumem::driver_api::driver().stream_is_capturing(owner.get(), &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE) << "a move is not an end";
}

TEST_F(stream_test, capturing_stream_is_given_out_after_its_capture) {
  stream origin{first};
  origin.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstream handle = nullptr;
  {
    stream side{first, -4};
    handle = side.get();
    gpumem::event fork{first}, join{first};
    fork.record(origin);
    side.wait(fork);
    gpumem::simulator::work(side, {});
    join.record(side);
    origin.wait(join);
  }
  std::optional<stream> fresh{std::in_place, first, -4};
  EXPECT_NE(fresh->get(), handle);
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(origin.end_capture()), CUDA_SUCCESS) << "the capture is whole";
  stream const again{first, -4};
  EXPECT_EQ(again.get(), handle);
}

TEST_F(stream_test, capture_that_the_destructor_may_not_end_stays) {
  auto const& driver = gpumem::driver_api::driver();
  std::optional<stream> captured{std::in_place, first, -5};
  auto const handle = captured->get();
  std::thread{[&] { captured->begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); }}.join();
  captured.reset(); // only the other thread may end the capture
  EXPECT_NE((stream{first, -5}).get(), handle);

  stream raw{first, -1};
  raw.begin_capture(); // ends without gpumem's knowledge, and then another stream's capture begins
  CUgraph graph = nullptr;
  EXPECT_EQ(driver.stream_end_capture(raw.get(), &graph), CUDA_SUCCESS);
  EXPECT_EQ(driver.graph_destroy(graph), CUDA_SUCCESS);
  stream origin{first};
  origin.begin_capture();
  gpumem::event fork{first};
  fork.record(origin);
  raw.wait(fork);
  fork.record(raw);
  origin.wait(fork);
  auto const joined = raw.get();
  { stream const ended{std::move(raw)}; }
  EXPECT_EQ(driver.graph_destroy(origin.end_capture()), CUDA_SUCCESS) << "not ended by a stream that had joined";
  stream const again{first, -1};
  EXPECT_EQ(again.get(), joined);
  EXPECT_FALSE(again.key().identity().capturing());
}

TEST_F(stream_test, capture_of_an_adopted_stream_goes_on) {
  auto const& driver = gpumem::driver_api::driver();
  auto const handle = make_foreign();
  {
    auto adopted = stream::adopt(handle);
    adopted.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
  }
  CUgraph graph = nullptr;
  EXPECT_EQ(driver.stream_end_capture(handle, &graph), CUDA_SUCCESS);
  EXPECT_EQ(driver.graph_destroy(graph), CUDA_SUCCESS);
  EXPECT_FALSE(identify(stream_ref{handle}, first).identity().timeline().capturing()) << "calls of pools read this";
  destroy(handle);
}

TEST_F(stream_test, moved_from_stream_is_refused) {
  stream s{first};
  stream now{std::move(s)};
  EXPECT_NE(s.get(), now.get()); // NOLINT(bugprone-use-after-move): that is tested
  EXPECT_NE(s.get(), CUstream{});
  auto const asked = gpumem::driver_api::driver_calls("cuStreamIsCapturing");
  EXPECT_THROW(identify(s, first), std::invalid_argument);
  EXPECT_THROW(identify(s), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(stream::adopt(s.get())), std::invalid_argument);
  EXPECT_THROW((gpumem::event{first}).record(s), std::invalid_argument);
  EXPECT_THROW((gpumem::event{first}).make_wait(s), std::invalid_argument);
  EXPECT_THROW(s.begin_capture(), std::invalid_argument);
  EXPECT_THROW(gpumem::completion(s).wait(), std::invalid_argument);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamIsCapturing"), asked) << "no driver call got the handle";
  s = std::move(now);
  EXPECT_NO_THROW(identify(s, first));
}

TEST_F(stream_test, synchronized_stream_is_complete) {
  stream s{first};
  gpumem::simulator::work(s, {}, 1us);
  auto& timeline = s.key().identity().timeline();
  auto const freed = timeline.current_epoch();
  EXPECT_FALSE(timeline.completed(freed));
  s.synchronize();
  EXPECT_TRUE(timeline.completed(freed));
  EXPECT_FALSE(timeline.completed(timeline.current_epoch()));
}

TEST_F(stream_test, host_stream_is_always_complete) {
  auto const host = stream_key::host();
  EXPECT_TRUE(host.identity().is_host());
  EXPECT_FALSE(host.identity().has_handle());
  EXPECT_TRUE(host.identity().timeline().completed(host.identity().timeline().current_epoch()));
  EXPECT_EQ(host, stream_key::host());
}

TEST_F(stream_test, failed_creation_leaves_no_stream) {
  gpumem::simulator::fail_call("cuStreamCreateWithPriority", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW((stream{second, -2}), gpumem::cuda_error);
  gpumem::simulator::fail_call("cuStreamGetId", 1, CUDA_ERROR_INVALID_VALUE);
  auto const destroyed = gpumem::driver_api::driver_calls("cuStreamDestroy");
  EXPECT_THROW((stream{second, -2}), gpumem::cuda_error);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamDestroy"), destroyed + 1);
  EXPECT_NO_THROW((stream{second, -2}));
}

} // namespace
