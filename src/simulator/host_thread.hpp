// What the driver keeps for each host thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "driver_api.hpp"

namespace simulated {

struct context;

/// The current context is the last. Nothing to destroy: objects with static storage may call the driver when the
/// thread-local ones of their thread are gone.
class context_stack {
public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] context* back() const noexcept { return contexts_[count_ - 1]; }
  /// False where there is no room.
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
  bool in_function = false; // runs a host function or the function of a piece of work
  bool own_work = false;    // a resource works on its own memory
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

host_thread& this_host_thread();

} // namespace simulated
