// Contexts and attributes of the simulated devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "driver_api.hpp"
#include "stream.hpp"

namespace simulated {

/// A CUDA context with its streams. Primary contexts survive a reset of the simulator.
struct context {
  int device = 0;
  std::uint64_t id = 0;
  bool primary = true;
  bool active = false;
  unsigned retained = 0;
  unsigned flags = 0;
  std::shared_ptr<stream> legacy;
  std::map<std::uint64_t, stream_ptr> per_thread; // by number of the host thread
  std::vector<stream_ptr> streams;                // all streams that are alive or have work
  std::set<const context*> peers;                 // contexts to whose memory this context has access
  vector_clock gone;  // covers the work of ended streams that were not CU_STREAM_NON_BLOCKING
  vector_clock ended; // covers the work of all ended streams

  [[nodiscard]] CUcontext handle() const noexcept { return reinterpret_cast<CUcontext>(const_cast<context*>(this)); }
};

/// Returns an attribute of the simulated device; 0 for features that it does not have.
int device_attribute(CUdevice_attribute attribute, int device) noexcept;

} // namespace simulated
