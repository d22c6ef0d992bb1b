// What the driver keeps for each host thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "driver_api.hpp"

namespace simulated {

struct context;

struct host_thread {
  std::uint64_t number = 0;
  std::vector<context*> contexts; // the current one is the last
  bool in_function = false;       // runs a host function or the function of a piece of work
  bool own_work = false;          // a resource works on its own memory
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

host_thread& this_host_thread();

} // namespace simulated
