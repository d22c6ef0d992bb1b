// The handling of misuse, and the texts of misuse and failures.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <cuda.h>

import gpumem;
#include "../support/parking_resource.hpp"

namespace {

using gpumem::failure;
using gpumem::misuse;
using gpumem::outcome;

misuse told{};
int times = 0;
void remember(misuse const& what) noexcept {
  told = what;
  ++times;
}

TEST(misuse_death, default_handler_prints_the_misuse_and_aborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  misuse const what{misuse::kind::wrong_size, reinterpret_cast<void*>(0x1234), 10, 20, 7, "my pool"};
  EXPECT_EXIT(gpumem::extend::report_misuse(what), testing::KilledBySignal(SIGABRT),
              "my pool.*another size.*0x1234.*10 bytes given.*20 bytes expected.*stream 7");
}

TEST(misuse, reports_go_to_the_handler_that_is_set) {
  auto* const before = gpumem::set_misuse_handler(remember);
  gpumem::extend::report_misuse({misuse::kind::double_free, nullptr, 1, 2, 3, "x"});
  EXPECT_EQ(told.what, misuse::kind::double_free);
  EXPECT_EQ(gpumem::set_misuse_handler(nullptr), remember);
  EXPECT_EQ(gpumem::set_misuse_handler(before), before); // null restored the default
}

TEST(misuse, each_kind_has_a_text) {
  for (auto kind :
       {misuse::kind::foreign_pointer, misuse::kind::double_free, misuse::kind::wrong_size,
        misuse::kind::use_after_close, misuse::kind::bad_stream, misuse::kind::other_device, misuse::kind::moved_from,
        misuse::kind::recorded_late, misuse::kind::overrun, misuse::kind::underrun, misuse::kind::use_after_free}) {
    EXPECT_EQ(std::string{gpumem::to_string(kind)}.find("unknown"), std::string::npos);
  }
}

TEST(misuse, free_on_an_unknown_stream_is_reported_and_ignored) {
  gpumem::device const first{0};
  gpumem::device_guard const scope{first};
  test::parking_resource resource{100};
  CUstream handle = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&handle, CU_STREAM_NON_BLOCKING),
                            "cuStreamCreate");
  auto* const p = resource.allocate(gpumem::stream_ref{handle}, 10);
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_destroy(handle), "cuStreamDestroy");
  gpumem::set_misuse_handler(remember);
  times = 0;
  EXPECT_THROW((void)resource.allocate(gpumem::stream_ref{handle}, 10), gpumem::cuda_error);
  EXPECT_EQ(times, 0) << "an allocation throws";
  resource.deallocate(gpumem::stream_ref{handle}, p, 10);
  EXPECT_EQ(times, 1);
  EXPECT_EQ(told.what, misuse::kind::bad_stream);
  EXPECT_EQ(told.pointer, p);
  EXPECT_EQ(resource.state().used(), 10u);
  gpumem::set_misuse_handler(nullptr);
  resource.deallocate_sync(p, 10);
  EXPECT_EQ(resource.state().used(), 0u);
  gpumem::simulator::take_findings(); // the simulated device saw the destroyed stream too
}

TEST(failure, failure_is_thrown_as_its_exception) {
  auto reason_of = [](outcome what) -> std::string {
    try {
      gpumem::extend::throw_failure({what, CUDA_ERROR_ILLEGAL_ADDRESS, 5}, {.live = 3});
    } catch (gpumem::out_of_memory const& e) {
      EXPECT_EQ(e.info().requested, 5u);
      EXPECT_EQ(e.info().live, 3u);
      EXPECT_EQ(e.reason(), what);
      return "memory";
    } catch (gpumem::cuda_error const& e) {
      EXPECT_EQ(static_cast<int>(e.status()), CUDA_ERROR_ILLEGAL_ADDRESS);
      return "cuda";
    } catch (std::invalid_argument const&) { return "argument"; } catch (gpumem::acquire_error const& e) {
      EXPECT_EQ(e.reason(), what);
      EXPECT_NE(std::string{e.what()}.find(gpumem::to_string(what)), std::string::npos);
      return "acquire";
    }
  };
  for (auto what : {outcome::exhausted, outcome::too_large}) EXPECT_EQ(reason_of(what), "memory");
  for (auto what : {outcome::device_lost, outcome::driver_error}) EXPECT_EQ(reason_of(what), "cuda");
  EXPECT_EQ(reason_of(outcome::invalid_argument), "argument");
  for (auto what : {outcome::stopped, outcome::deadline, outcome::closed, outcome::preempted, outcome::stalled,
                    outcome::capture_unsupported}) {
    EXPECT_EQ(reason_of(what), "acquire");
  }
}

TEST(out_of_memory, carries_all_statistics) {
  gpumem::out_of_memory const e{outcome::exhausted,
                                {.requested = 11,
                                 .live = 22,
                                 .reserved = 33,
                                 .largest_free = 44,
                                 .limit = 55,
                                 .device_free = 66,
                                 .device_total = 77,
                                 .stream = 88,
                                 .device = 1,
                                 .free = 99,
                                 .free_ranges = 111,
                                 .free_in_use = 222,
                                 .in_use_streams = 333,
                                 .quarantined = 444}};
  std::string const text = e.what();
  for (auto const* figure : {"11", "22", "33", "44", "55", "66", "77", "88", "device 1", "exhausted",
                             "largest free range 44 B, free 99 B in 111 ranges",
                             "free but still in use 222 B on 333 streams", "quarantined 444 B"}) {
    EXPECT_NE(text.find(figure), std::string::npos) << figure << " in " << text;
  }
  EXPECT_THROW(throw gpumem::out_of_memory{e}, std::bad_alloc);
}

// In the last test, since the device stays lost.
TEST(resource, free_on_a_lost_device_is_counted_and_no_misuse) {
  gpumem::device_guard const scope{gpumem::device{0}};
  test::parking_resource resource{100};
  CUstream handle = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&handle, CU_STREAM_NON_BLOCKING),
                            "cuStreamCreate");
  auto* const p = resource.allocate(gpumem::stream_ref{handle}, 10);
  gpumem::simulator::sticky_error(CUDA_ERROR_LAUNCH_FAILED);
  gpumem::set_misuse_handler(remember);
  times = 0;
  resource.deallocate(gpumem::stream_ref{handle}, p, 10);
  EXPECT_EQ(times, 0); // no misuse
  EXPECT_EQ(resource.state().used(), 0u);
  EXPECT_TRUE(gpumem::device{0}.lost());
  EXPECT_EQ(resource.try_allocate(gpumem::stream_ref{handle}, 10).error().reason, outcome::device_lost);
  EXPECT_THROW((void)resource.allocate_sync(10), gpumem::cuda_error);
  gpumem::set_misuse_handler(nullptr);
}

} // namespace
