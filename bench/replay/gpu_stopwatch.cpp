// Start and end of a measured pass, by events.
// SPDX-License-Identifier: Apache-2.0
module;

#include <memory>
#include <span>

#include <cuda.h>

module replay:gpu_stopwatch.impl;

import gpumem;
import :gpu_stopwatch;
import :streams;

namespace replay {

void gpu_stopwatch::event_closer::operator()(CUevent event) const noexcept {
  gpumem::driver_api::driver().event_destroy(event);
}

gpu_stopwatch::event gpu_stopwatch::make_event(unsigned flags) {
  CUevent made = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().event_create(&made, flags), "create an event");
  return event{made};
}

gpu_stopwatch::gpu_stopwatch(gpumem::device device, std::span<stream_set const> sets) : control_{device}, sets_{sets} {
  gpumem::device_guard const here{device};
  start_ = make_event(0);
  stop_ = make_event(0);
  join_ = make_event(CU_EVENT_DISABLE_TIMING);
}

void gpu_stopwatch::each_stream(auto&& visit) const {
  for (stream_set const& set : sets_) {
    for (gpumem::stream_ref const& each : set.refs()) visit(each.get());
  }
}

void gpu_stopwatch::begin() {
  auto const& driver = gpumem::driver_api::driver();
  gpumem::driver_api::check(driver.event_record(start_.get(), control_.get()), "record an event");
  each_stream([&](CUstream stream) {
    gpumem::driver_api::check(driver.stream_wait_event(stream, start_.get(), 0), "wait for an event");
  });
}

double gpu_stopwatch::end() {
  auto const& driver = gpumem::driver_api::driver();
  each_stream([&](CUstream stream) {
    // one event is enough: a wait refers to the recording at the time when it was enqueued
    gpumem::driver_api::check(driver.event_record(join_.get(), stream), "record an event");
    gpumem::driver_api::check(driver.stream_wait_event(control_.get(), join_.get(), 0), "wait for an event");
  });
  gpumem::driver_api::check(driver.event_record(stop_.get(), control_.get()), "record an event");
  gpumem::driver_api::check(driver.event_synchronize(stop_.get()), "wait for the device");
  float milliseconds = 0;
  gpumem::driver_api::check(driver.event_elapsed_time(&milliseconds, start_.get(), stop_.get()),
                            "read the device's time");
  return milliseconds;
}

} // namespace replay
