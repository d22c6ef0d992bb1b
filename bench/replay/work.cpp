// The kernel's code and its launch, the events of the stopwatch, and the passes of the reference.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>
module replay:work.impl;
import gpumem;
import :work;
import :options;
import :plan;
import :replay_session;

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

namespace detail {

// PTX by hand, so that the tool needs no nvcc; the driver compiles it for the device.
inline constexpr char const* work_ptx = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry gpumem_replay_work(.param .u64 block, .param .u64 bytes, .param .u64 nanoseconds)
{
  .reg .pred %p<3>;
  .reg .b64 %d<7>;
  ld.param.u64 %d1, [block];
  ld.param.u64 %d2, [bytes];
  ld.param.u64 %d3, [nanoseconds];
  setp.lt.u64 %p1, %d2, 4;
  @%p1 bra timing;
  st.volatile.u32 [%d1], 1;
timing:
  mov.u64 %d4, %globaltimer;
busy:
  mov.u64 %d5, %globaltimer;
  sub.u64 %d6, %d5, %d4;
  setp.lt.u64 %p2, %d6, %d3;
  @%p2 bra busy;
  ret;
}
)";

} // namespace detail

work_kernel::work_kernel(gpumem::device device, double microseconds)
    : device_{device}, nanoseconds_{static_cast<std::uint64_t>(std::llround(microseconds * 1000))} {
  gpumem::device_guard const here{device_};
  auto const& driver = gpumem::driver_api::driver();
  gpumem::driver_api::check(driver.module_load_data(&module_, detail::work_ptx), "load the kernel");
  gpumem::driver_api::check(driver.module_get_function(&function_, module_, "gpumem_replay_work"), "find the kernel");
}

work_kernel::~work_kernel() {
  try {
    gpumem::device_guard const here{device_};
    gpumem::driver_api::driver().module_unload(module_);
  } catch (...) {
    // fails only if the device is lost; its modules are lost with it
  }
}

void work_kernel::launch(gpumem::stream_ref stream, void* block, std::uint64_t bytes) const {
  std::uint64_t touched = block == nullptr ? 0 : bytes;
  std::uint64_t nanoseconds = nanoseconds_;
  void* arguments[] = {static_cast<void*>(&block), &touched, &nanoseconds};
  gpumem::driver_api::check(
      gpumem::driver_api::driver().launch_kernel(function_, 1, 1, 1, 1, 1, 1, 0, stream.get(), arguments, nullptr),
      "launch the kernel");
}

namespace detail {

inline constexpr std::uint64_t touched_bytes = 256; // a kernel writes one word; blocks do not share cache lines

class device_slab {
public:
  device_slab(gpumem::device device, std::size_t bytes) : device_{device} {
    gpumem::device_guard const here{device_};
    gpumem::driver_api::check(gpumem::driver_api::driver().mem_alloc(&address_, bytes),
                              "allocate the memory to compare with");
  }
  device_slab(device_slab const&) = delete;
  device_slab& operator=(device_slab const&) = delete;
  ~device_slab() {
    try {
      gpumem::device_guard const here{device_};
      gpumem::driver_api::driver().mem_free(address_);
    } catch (...) {
      // fails only if the device is lost; its memory is lost with it
    }
  }
  std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }

private:
  gpumem::device device_;
  CUdeviceptr address_ = 0;
};

} // namespace detail

std::uint64_t launches_of(plan const& operations, unsigned every) { return operations.allocations / every; }

std::vector<double> time_preallocated(run_config const& what, replay_session& on, work_kernel const& kernel,
                                      gpu_stopwatch& line) {
  plan const& operations = what.trace->operations;
  std::uint64_t const thread_bytes = operations.blocks * detail::touched_bytes;
  detail::device_slab const slab{what.where->device, thread_bytes * what.threads};
  std::vector<double> milliseconds;
  for (unsigned i = 0; i <= what.chosen->repeat; ++i) {
    line.begin();
    on.run("preallocated memory", [&](replay_session::member mine) {
      work_timer watch{kernel, what.chosen->work->every, mine.streams};
      std::byte* const blocks = slab.data() + mine.number * thread_bytes;
      for (operation const& next : operations.operations) {
        if (next.allocates) watch.after(next, blocks + next.block * detail::touched_bytes);
      }
    });
    double const took = line.end();
    if (i != 0) milliseconds.push_back(took);
  }
  return milliseconds;
}

} // namespace replay
