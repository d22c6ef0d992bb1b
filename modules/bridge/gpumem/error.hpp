// The exceptions that report failures, for the module and for code that cannot import it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/outcome.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

// Default visibility lets one shared library catch an exception that another one throws.
#pragma GCC visibility push(default)

namespace gpumem {

/// Statistics taken when memory ran out. Numbers are bytes unless stated otherwise; 0 if the resource does not know a
/// number.
struct out_of_memory_info {
  std::size_t requested = 0;        ///< bytes that the call requested
  std::size_t live = 0;             ///< requested bytes of blocks that the host has not freed yet
  std::size_t reserved = 0;         ///< bytes that the resource has from its upstream
  std::size_t largest_free = 0;     ///< size of the largest free range
  std::size_t limit = 0;            ///< most bytes that may be reserved; 0: no limit
  std::size_t device_free = 0;      ///< free bytes of the device
  std::size_t device_total = 0;     ///< all bytes of the device
  std::uint64_t stream = 0;         ///< id of the request's stream
  int device = -1;                  ///< ordinal; -1: not known
  std::size_t free = 0;             ///< reserved bytes that are neither in blocks nor in the caches of threads
  std::uint64_t free_ranges = 0;    ///< number of free ranges
  std::size_t free_in_use = 0;      ///< free bytes whose last use the host has not seen complete yet
  std::uint64_t in_use_streams = 0; ///< number of streams whose work may still use free memory
  std::size_t quarantined = 0;      ///< freed bytes that a hardened pool (one that finds misuse) keeps from reuse
};

/// Thrown if memory is exhausted, or if the request is larger than the resource can ever serve.
class out_of_memory : public std::bad_alloc {
public:
  /// Makes the text of what() from the statistics.
  out_of_memory(outcome what, out_of_memory_info const& info) : out_of_memory{what, info, describe(what, info)} {}
  /// Uses `text` as the text of what().
  out_of_memory(outcome what, out_of_memory_info const& info, std::string const& text)
      : info_{info}, text_{text}, reason_{what} {}
  char const* what() const noexcept override { return text_.what(); }
  /// Returns outcome::exhausted or outcome::too_large.
  outcome reason() const noexcept { return reason_; }
  /// Returns the statistics at the time of the failure.
  out_of_memory_info const& info() const noexcept { return info_; }

private:
  static std::string describe(outcome what, out_of_memory_info const& f) {
    auto const bytes = [](std::size_t n) { return std::to_string(n); };
    std::string text = "gpumem: out of memory (" + std::string{to_string(what)} + "): requested " + bytes(f.requested) +
                       " bytes, live " + bytes(f.live) + ", reserved " + bytes(f.reserved) + ", largest free range " +
                       bytes(f.largest_free);
    if (f.free_ranges) text += ", free " + bytes(f.free) + " in " + bytes(f.free_ranges) + " ranges";
    if (f.free_in_use) {
      text +=
          ", free but still in use " + bytes(f.free_in_use) + " on " + std::to_string(f.in_use_streams) + " streams";
    }
    if (f.quarantined) text += ", quarantined " + bytes(f.quarantined);
    if (f.limit) text += ", limit " + bytes(f.limit);
    if (f.device >= 0) {
      text += "; device " + std::to_string(f.device) + " has " + bytes(f.device_free) + " of " + bytes(f.device_total) +
              " bytes free";
    }
    return text + "; stream " + std::to_string(f.stream);
  }

  out_of_memory_info info_;
  std::runtime_error text_; // a std::runtime_error copies its text without throwing
  outcome reason_;
};

/// Thrown for outcomes such as stopped, deadline and closed: neither exhaustion nor an error of the driver. Class
/// `pool` of <gpumem/pool.hpp> also throws it for an error of the driver. Then why().code is that error.
class acquire_error : public std::runtime_error {
public:
  /// Makes the text of what() from the failure.
  explicit acquire_error(failure const& why) : acquire_error{why, describe(why)} {}
  /// Uses `text` as the text of what().
  acquire_error(failure const& why, std::string const& text) : std::runtime_error{text}, why_{why} {}
  /// Returns the outcome of the request.
  outcome reason() const noexcept { return why_.reason; }
  /// Returns the outcome, its code and the requested bytes.
  failure const& why() const noexcept { return why_; }

private:
  static std::string describe(failure const& why) {
    if (why.requested == 0) return std::string{"gpumem: a wait was not completed: "} + to_string(why.reason);
    auto const text =
        "gpumem: a request for " + std::to_string(why.requested) + " bytes was not granted: " + to_string(why.reason);
    return why.reason == outcome::stalled ? text + "; describe_waiting() of the pool says what holds its memory" : text;
  }

  failure why_;
};

} // namespace gpumem

#pragma GCC visibility pop
