// A device whose primary context was reset without gpumem's knowledge: the first call that needs the driver reports it,
// and so does every later one.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <cuda.h>

import gpumem;

namespace {

using namespace std::chrono_literals;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t bytes = 1000;

// Each test takes a device of its own, since a lost device stays lost for the rest of the process.
class own_device {
public:
  own_device() : device{next_++} {}
  gpumem::device const device;

  void reset() const {
    static auto* const library = dlopen("libcuda.so.1", RTLD_NOW);
    static auto* const reset =
        reinterpret_cast<decltype(&cuDevicePrimaryCtxReset)>(dlsym(library, "cuDevicePrimaryCtxReset_v2"));
    ASSERT_EQ(reset(device.ordinal()), CUDA_SUCCESS);
  }
  // Another part of the program goes on with the device, as the CUDA runtime does by itself.
  CUcontext activate() const {
    CUcontext context = nullptr;
    EXPECT_EQ(gpumem::driver_api::driver().device_primary_ctx_retain(&context, device.ordinal()), CUDA_SUCCESS);
    EXPECT_EQ(context, device.context()) << "the handle is unchanged";
    return context;
  }

private:
  static inline int next_ = 0;
};

struct objects : own_device {
  pool pages{device};
  pool chunks{gpumem::cuda_resource{device}};
  pool hardened{gpumem::cuda_resource{device}, {.hardened = {.enabled = true}}};
  gpumem::cuda_resource cuda{device};
  gpumem::async_resource async{device};
  gpumem::stream a{device}, b{device};
  gpumem::event happened{device};
  void* const page = pages.allocate(a, bytes);
  void* const chunk = chunks.allocate(a, bytes);
  void* const hard = hardened.allocate(a, bytes);
  void* const drawn = cuda.allocate(a, bytes);
  void* const drawn_async = async.allocate(a, bytes);
  gpumem::allocation block = pages.acquire(a, bytes).wait();
  gpumem::buffer buffer{a, chunks, bytes};

  objects() {
    happened.record(a);
    pages.deallocate(b, pages.allocate(b, MiB), MiB);
  }
};

// Returns the text of the exception; empty if there is none.
template <class Function> std::string told(Function run) {
  try {
    run();
  } catch (std::exception const& e) { return e.what(); }
  return "";
}

bool says_it(std::string const& text) {
  return text.find("was reset") != std::string::npos && text.find("restart the process") != std::string::npos;
}

struct call {
  char const* name;
  void (*make)(objects& o);
};

// Calls that need the driver or return a new object or memory.
constexpr call calls[] = {
    {"stream", [](objects& o) { gpumem::stream{o.device}; }},
    {"stream::synchronize", [](objects& o) { o.a.synchronize(); }},
    {"stream::wait", [](objects& o) { o.b.wait(o.happened); }},
    {"event", [](objects& o) { gpumem::event{o.device}; }},
    {"event::record", [](objects& o) { o.happened.record(o.b); }},
    {"event::is_done", [](objects& o) { o.happened.is_done(); }},
    {"completion", [](objects& o) { gpumem::completion(o.a).wait(); }},
    {"co_await completion", [](objects& o) { gpumem::sync_wait(gpumem::completion(o.a)); }},
    {"co_await completion of an event", [](objects& o) { gpumem::sync_wait(gpumem::completion(o.happened)); }},
    {"pool over pages", [](objects& o) { pool{o.device}; }},
    {"pool over chunks", [](objects& o) { pool{o.cuda}; }},
    {"hardened pool", [](objects& o) { pool{o.cuda, {.hardened = {.enabled = true}}}; }},
    {"async_resource", [](objects& o) { gpumem::async_resource{o.device}; }},
    {"async_resource_view", [](objects& o) { gpumem::async_resource_view{o.device}; }},
    {"current_resource", [](objects& o) { gpumem::current_resource(o.device).allocate(o.a, bytes, 256); }},
    {"allocate of pages", [](objects& o) { (void)o.pages.allocate(o.a, 64 * MiB); }},
    {"allocate of chunks", [](objects& o) { (void)o.chunks.allocate(o.a, 64 * MiB); }},
    {"allocate_sync of chunks", [](objects& o) { (void)o.chunks.allocate_sync(64 * MiB); }},
    {"allocate, hardened", [](objects& o) { (void)o.hardened.allocate(o.a, 64 * MiB); }},
    {"allocate of the driver", [](objects& o) { (void)o.cuda.allocate(o.a, bytes); }},
    {"allocate of the driver's pool", [](objects& o) { (void)o.async.allocate(o.a, bytes); }},
    {"acquire",
     [](objects& o) { // without a wait: the device counts as full
       auto const got = o.pages.acquire(o.a, 64 * MiB).wait_until(gpumem::detail::sync::now());
       if (!got) gpumem::extend::throw_failure(got.error());
     }},
    {"reserve", [](objects& o) { o.pages.reserve(64 * MiB); }},
    {"buffer::fill", [](objects& o) { o.buffer.fill(std::byte{1}); }},
    {"buffer::synchronize", [](objects& o) { o.buffer.synchronize(); }},
    {"async_resource::usage", [](objects& o) { o.async.usage(); }},
};

class device_reset : public testing::TestWithParam<bool> {
protected:
  // The devices cost only addresses.
  static void SetUpTestSuite() { simulator::load({.devices = 64, .capacity = 256 * MiB}); }
  void TearDown() override {
    for (auto const& found : simulator::take_findings()) ADD_FAILURE() << found.text;
  }
  // Resets the device; with the parameter set another part of the program goes on using it.
  static void reset_device(objects& o) {
    o.reset();
    if (GetParam()) o.activate();
  }
};

INSTANTIATE_TEST_SUITE_P(context, device_reset, testing::Bool(),
                         [](auto const& of) { return of.param ? "is_active_again" : "stays_destroyed"; });

// The first call may still pass stale handles to the driver, later ones must not.
TEST_P(device_reset, every_call_after_a_reset_fails_as_device_lost) {
  for (auto const& first : calls) {
    objects o;
    reset_device(o);
    auto const text = told([&] { first.make(o); });
    EXPECT_TRUE(says_it(text)) << first.name << ": " << text;
    EXPECT_EQ(o.device.lost_error(), CUDA_ERROR_CONTEXT_IS_DESTROYED) << first.name;
    simulator::take_findings();
    for (auto const& each : calls) {
      auto const later = told([&] { each.make(o); });
      EXPECT_TRUE(says_it(later)) << each.name << " after " << first.name << ": " << later;
    }
  }
}

TEST_P(device_reset, frees_and_statistics_work_after_a_reset) {
  std::optional<objects> made{std::in_place};
  auto& o = *made;
  reset_device(o);
  EXPECT_TRUE(says_it(told([&] { gpumem::event{o.device}; })));
  auto const before = gpumem::driver_api::driver_calls();
  auto const live = o.cuda.statistics().live; // includes the chunks of the pools
  EXPECT_EQ(o.pages.try_allocate(o.b, MiB).error().reason, gpumem::outcome::device_lost)
      << "memory in the thread cache too";
  o.pages.deallocate(o.a, o.page, bytes);
  o.chunks.deallocate(o.b, o.chunk);
  o.hardened.deallocate(o.a, o.hard, bytes);
  o.cuda.deallocate(o.a, o.drawn, bytes);
  o.async.deallocate(o.a, o.drawn_async, bytes);
  o.block.reset();
  EXPECT_EQ(o.pages.statistics().live, 0u);
  EXPECT_EQ(o.hardened.statistics().live, 0u);
  EXPECT_EQ(o.cuda.statistics().live, live - bytes);
  EXPECT_EQ(o.pages.trim(), 0u) << "an error is not completion";
  EXPECT_EQ(o.async.trim(), 0u);
  EXPECT_FALSE(o.pages.synchronize(1ms));
  EXPECT_FALSE(o.hardened.synchronize(1ms));
  made.reset();
  EXPECT_EQ(gpumem::driver_api::driver_calls(), before) << "destroyed objects are not accessed";
}

// The library polls by itself: no call of the program has found the reset yet.
TEST_P(device_reset, no_event_from_before_the_reset_is_polled_or_waited_for) {
  objects o;
  auto& timeline = o.a.key().identity().timeline();
  auto const closed = timeline.record_at_free(o.a.get());
  EXPECT_TRUE(timeline.waitable(closed));
  reset_device(o);
  EXPECT_FALSE(timeline.poll());
  EXPECT_TRUE(o.device.lost());
  EXPECT_FALSE(timeline.insert_wait(o.b.key().identity().timeline(), o.b.get(), closed));
}

// Raw streams end with the device's context, and so do adopted ones, even though their owner promised that they live.
TEST_P(device_reset, streams_of_the_caller_are_not_destroyed_after_a_reset) {
  objects o;
  gpumem::device_guard const scope{o.device};
  CUstream raw = nullptr, given = nullptr;
  ASSERT_EQ(gpumem::driver_api::driver().stream_create(&raw, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(gpumem::driver_api::driver().stream_create(&given, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  auto block = o.pages.acquire(gpumem::stream_ref{raw}, bytes).wait();
  std::optional<gpumem::stream> promised = gpumem::stream::adopt(given);
  o.pages.deallocate(*promised, o.pages.allocate(*promised, bytes), bytes);
  reset_device(o);
  EXPECT_TRUE(says_it(told([&] { gpumem::event{o.device}; })));
  simulator::take_findings();
  block.reset();
  promised.reset();
}

TEST_P(device_reset, memory_allocated_after_a_reset_is_not_freed) {
  objects o;
  auto* const by_host = o.cuda.allocate_sync(bytes);
  o.reset();
  o.activate();
  gpumem::device_guard const scope{o.device};
  CUdeviceptr others = 0;
  auto* const mine = GetParam() ? by_host : o.drawn;
  while (others != reinterpret_cast<CUdeviceptr>(mine)) { // until the freed address is allocated again
    ASSERT_EQ(gpumem::driver_api::driver().mem_alloc(&others, bytes), CUDA_SUCCESS);
  }
  if (GetParam()) {
    o.cuda.deallocate_sync(mine, bytes);
  } else {
    o.cuda.deallocate(o.a, mine, bytes);
  }
  EXPECT_TRUE(o.device.lost());
  EXPECT_EQ(gpumem::driver_api::driver().mem_free(others), CUDA_SUCCESS);
  simulator::take_findings();
}

TEST_P(device_reset, objects_that_made_no_call_since_a_reset_can_be_destroyed) {
  std::optional<objects> made{std::in_place};
  auto const device = made->device;
  reset_device(*made);
  made.reset();
  EXPECT_TRUE(device.lost());
  for (auto const& found : simulator::take_findings()) {
    bool const dead =
        found.kind == simulator::finding_kind::dead_stream || found.kind == simulator::finding_kind::dead_event;
    EXPECT_TRUE(dead) << found.text;
  }
}

gpumem::task<> wait_for(gpumem::stream_ref stream, std::string& text) {
  text = "";
  try {
    co_await gpumem::completion(stream);
  } catch (gpumem::cuda_error const& e) { text = e.what(); }
}

TEST_P(device_reset, waits_for_the_device_end_with_the_reset) {
  objects o;
  simulator::never_complete(o.happened.get());
  o.happened.record(o.a);
  std::string text;
  std::thread waiting{[&] { gpumem::sync_wait(wait_for(o.a, text)); }};
  auto const rounds = gpumem::detail::completion_rounds(o.device);
  while (gpumem::detail::completion_rounds(o.device) < rounds + 2) std::this_thread::yield(); // the wait is polled
  reset_device(o);
  waiting.join();
  EXPECT_TRUE(says_it(text)) << text;
  simulator::take_findings();
}

} // namespace
