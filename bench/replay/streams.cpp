// Makes and destroys the streams of a replay.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstdint>
#include <vector>

#include <cuda.h>

module replay:streams.impl;

import gpumem;
import :streams;

namespace replay {

stream_set::stream_set(gpumem::device device, std::uint32_t count, bool foreign) {
  gpumem::device_guard const here{device};
  own_.reserve(foreign ? 0 : count);
  foreign_.reserve(foreign ? count : 0);
  refs_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (foreign) {
      CUstream handle = nullptr;
      gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&handle, CU_STREAM_NON_BLOCKING),
                                "create a stream");
      foreign_.push_back(handle);
      refs_.emplace_back(handle);
    } else {
      own_.emplace_back(device);
      refs_.push_back(own_.back());
    }
  }
}

stream_set::~stream_set() {
  for (CUstream const handle : foreign_) gpumem::driver_api::driver().stream_destroy(handle);
}

void stream_set::synchronize() const {
  for (gpumem::stream_ref const& each : refs_) {
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_synchronize(each.get()), "wait for a stream");
  }
}

} // namespace replay
