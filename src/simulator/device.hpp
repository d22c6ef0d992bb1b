// Contexts and attributes of the simulated devices, and the state that the driver keeps for each host thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "driver_api.hpp"
#include "stream.hpp"

namespace simulated {

struct context;

/// A stack of contexts; the last one is current. Its destructor is trivial, since destructors of static objects may
/// call the driver after the thread-local objects of their thread were destroyed.
class context_stack {
public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] context* back() const noexcept { return contexts_[count_ - 1]; }
  /// Returns false if the stack is full.
  [[nodiscard]] bool push(context* home) noexcept {
    if (count_ == contexts_.size()) return false;
    contexts_[count_++] = home;
    return true;
  }
  void pop() noexcept { --count_; }

private:
  std::array<context*, 256> contexts_{};
  std::size_t count_ = 0;
};

struct host_thread {
  std::uint64_t number = 0;
  context_stack contexts;
  bool in_function = false; // the thread runs a host function or a function of device work
  bool own_work = false;    // the thread enqueues a fill or copy that a resource itself does
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

host_thread& this_host_thread();

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
  std::set<context const*> peers;                 // contexts to whose memory this context has access
  vector_clock ended_order; // covers the work of ended streams that were not CU_STREAM_NON_BLOCKING
  vector_clock ended;       // covers the work of all ended streams

  [[nodiscard]] CUcontext handle() const noexcept { return reinterpret_cast<CUcontext>(const_cast<context*>(this)); }
};

/// Returns an attribute of the simulated device; 0 for features that it does not have.
int device_attribute(CUdevice_attribute attribute, int device) noexcept;

} // namespace simulated
