// The outcomes of a request for memory, for C++ and nvcc code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem {

/// The result of a request for memory: exactly one of these.
enum class outcome : std::uint8_t {
  granted,             ///< memory was given
  stopped,             ///< the caller requested a stop before memory was granted
  deadline,            ///< the deadline passed while waiting
  closed,              ///< the resource was closed
  too_large,           ///< the request can never be met
  exhausted,           ///< there is no memory now
  preempted,           ///< ended in favour of older work; the caller must free its memory and begin its work again
  stalled,             ///< no memory comes: the work that holds it waits too, or nothing is freed for the time that
                       ///< the pool's option stall_timeout sets
  capture_unsupported, ///< the stream is capturing a graph, and no capture scope serves it
  device_lost,         ///< the device reported a sticky error or was reset
  invalid_argument,    ///< the call broke a rule; see broken_rule
  driver_error,        ///< another error of the driver
};

/// Returns the name of the enumerator.
inline char const* to_string(outcome value) noexcept {
  switch (value) {
  case outcome::granted: return "granted";
  case outcome::stopped: return "stopped";
  case outcome::deadline: return "deadline";
  case outcome::closed: return "closed";
  case outcome::too_large: return "too_large";
  case outcome::exhausted: return "exhausted";
  case outcome::preempted: return "preempted";
  case outcome::stalled: return "stalled";
  case outcome::capture_unsupported: return "capture_unsupported";
  case outcome::device_lost: return "device_lost";
  case outcome::invalid_argument: return "invalid_argument";
  case outcome::driver_error: return "driver_error";
  }
  return "unknown outcome";
}

/// The rule that a call broke. It is the `code` of a failure whose reason is outcome::invalid_argument.
enum class broken_rule : int {
  other = 0,              ///< any rule that is not named here
  alignment = -1,         ///< the alignment is not a power of two
  other_device = -2,      ///< a default stream was given while another device is current
  moved_from = -3,        ///< the handle was moved from
  moved_from_stream = -4, ///< a stream object was given that had been moved from
  unopened_device = -5,   ///< the stream's device may not use the resource's memory; see open_to()
  /// A function that the pool calls while it gets memory or gives it back has called that pool, for something that
  /// needs the same.
  inside_growth = -6,
};

/// A request that was not granted. The resource is as it was before the request.
struct failure {
  outcome reason = outcome::exhausted; ///< never outcome::granted
  int code = 0;                        ///< a broken_rule, or the driver's error (CUresult); 0 if neither is the cause.
                                       ///< For `exhausted` it is -1 if the host had no memory. For `exhausted` and
                                       ///< `too_large` it is -2 if the pool found no addresses for more pages
  std::size_t requested = 0;           ///< bytes that were requested

  friend bool operator==(failure const& a, failure const& b) noexcept {
    return a.reason == b.reason && a.code == b.code && a.requested == b.requested;
  }
};

} // namespace gpumem
