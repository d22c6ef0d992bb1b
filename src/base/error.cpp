// The texts and the exceptions of failures.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <stdexcept>
#include <string>
module gpumem:error.impl;
import :error;
import :cuda;
import :driver;

namespace gpumem {
namespace {

std::string exhaustion_text(outcome what, out_of_memory_info const& f) {
  auto const bytes = [](std::size_t n) { return std::to_string(n); };
  std::string text = "gpumem: out of memory (" + std::string{to_string(what)} + "): requested " + bytes(f.requested) +
                     " bytes, live " + bytes(f.live) + ", reserved " + bytes(f.reserved) + ", largest free range " +
                     bytes(f.largest_free);
  if (f.free_ranges) text += ", free " + bytes(f.free) + " in " + bytes(f.free_ranges) + " ranges";
  if (f.free_in_use) {
    text += ", free but still in use " + bytes(f.free_in_use) + " on " + std::to_string(f.in_use_streams) + " streams";
  }
  if (f.quarantined) text += ", quarantined " + bytes(f.quarantined);
  if (f.limit) text += ", limit " + bytes(f.limit);
  if (f.device >= 0) {
    text += "; device " + std::to_string(f.device) + " has " + bytes(f.device_free) + " of " + bytes(f.device_total) +
            " bytes free";
  }
  return text + "; stream " + std::to_string(f.stream);
}

std::string refusal_text(failure const& why) {
  if (why.requested == 0) return std::string{"gpumem: a wait was not completed: "} + to_string(why.reason);
  auto const text =
      "gpumem: a request for " + std::to_string(why.requested) + " bytes was not granted: " + to_string(why.reason);
  return why.reason == outcome::stalled ? text + "; describe_waiting() of the pool says what holds its memory" : text;
}

} // namespace

char const* to_string(outcome value) noexcept {
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

out_of_memory::out_of_memory(outcome what, out_of_memory_info const& info)
    : info_{info}, text_{exhaustion_text(what, info)}, reason_{what} {}

acquire_error::acquire_error(failure const& why) : std::runtime_error{refusal_text(why)}, why_{why} {}

void extend::throw_failure(failure const& why, out_of_memory_info const& info) {
  switch (why.reason) {
  case outcome::exhausted:
  case outcome::too_large: {
    auto filled = info;
    filled.requested = why.requested;
    throw out_of_memory{why.reason, filled};
  }
  case outcome::device_lost:
  case outcome::driver_error: throw_cuda_error(static_cast<CUresult>(why.code), "gpumem: the device refused memory");
  case outcome::invalid_argument:
    throw std::invalid_argument{
        "gpumem: the alignment is not a power of two, or the stream is a default stream of another device"};
  default: throw acquire_error{why};
  }
}

} // namespace gpumem
