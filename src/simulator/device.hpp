// Devices and contexts.
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

/// A context: the streams made in it, and its two default streams. Primary contexts outlive a reset of the
/// simulator.
struct context {
  int device = 0;
  std::uint64_t id = 0;
  bool primary = true;
  bool active = false;
  unsigned retained = 0;
  unsigned flags = 0;
  std::shared_ptr<stream> legacy;
  std::map<std::uint64_t, stream_ptr> per_thread; // by number of the host thread
  std::vector<stream_ptr> streams;                // all with work, or alive
  std::set<const context*> peers;                 // contexts whose memory it was given access to
  vector_clock gone;                              // order of the blocking streams that are no more
  vector_clock ended;                             // order of all streams that are no more

  [[nodiscard]] CUcontext handle() const noexcept { return reinterpret_cast<CUcontext>(const_cast<context*>(this)); }
};

/// What the simulated device says of one attribute; 0 for what it does not have.
int device_attribute(CUdevice_attribute attribute, int device) noexcept;

} // namespace simulated
