// The state that the driver keeps for each host thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "driver_api.hpp"

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

} // namespace simulated
