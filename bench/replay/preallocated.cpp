// Runs the reference passes over memory that is allocated beforehand.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda.h>

module replay:preallocated.impl;

import gpumem;
import :device;
import :options;
import :plan;
import :preallocated;
import :replay_session;
import :gpu_stopwatch;
import :work;

namespace replay {

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
