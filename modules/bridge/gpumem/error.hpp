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

namespace detail {

/// Returns a size as text: with one decimal and a unit from KiB on, such as "1.5 MiB"; the same in every locale.
inline std::string size_text(std::size_t bytes) {
  constexpr char const* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  int unit = 0;
  while (unit < 5 && bytes >> (10 * unit + 20) > 0) ++unit;
  auto const shift = 10 * unit + 10;
  auto const rest = static_cast<std::uint64_t>(bytes) & ((std::uint64_t{1} << shift) - 1);
  auto tenths = (bytes >> shift) * 10 + ((rest * 10 + (std::uint64_t{1} << (shift - 1))) >> shift);
  if (tenths == 10240 && unit < 5) tenths = 10, ++unit;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " " + units[unit];
}

} // namespace detail

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
  std::size_t quarantined = 0;      ///< freed bytes that a hardened pool keeps from reuse
  std::size_t largest_block = 0;    ///< most bytes of a block of the resource; 0: no bound
  bool no_addresses = false;        ///< the device has memory, but the process has no addresses for it
};

/// Thrown if memory is exhausted, or if the request is larger than the resource can ever serve.
class out_of_memory : public std::bad_alloc {
public:
  /// Makes the text of what() from the statistics.
  out_of_memory(outcome reason, out_of_memory_info const& info) : out_of_memory{reason, info, describe(reason, info)} {}
  /// Uses `text` as the text of what().
  out_of_memory(outcome reason, out_of_memory_info const& info, std::string const& text)
      : info_{info}, text_{text}, reason_{reason} {}
  char const* what() const noexcept override { return text_.what(); }
  /// Returns outcome::exhausted or outcome::too_large.
  outcome reason() const noexcept { return reason_; }
  /// Returns the statistics at the time of the failure.
  out_of_memory_info const& info() const noexcept { return info_; }
  /// Returns a text that names the resource, unless `resource` is null, and shows the statistics. Sizes have one
  /// decimal and a unit. A size that differs from the request, but has the same text, is shown in bytes too, as is the
  /// request.
  static std::string describe(outcome reason, out_of_memory_info const& f, char const* resource = nullptr) {
    auto const requested = detail::size_text(f.requested);
    auto const alike = [&](std::size_t n) { return n != f.requested && detail::size_text(n) == requested; };
    bool const exact = alike(f.live) || alike(f.reserved) || alike(f.largest_free) || alike(f.limit) ||
                       alike(f.largest_block) || alike(f.free) || alike(f.free_in_use) || alike(f.quarantined) ||
                       alike(f.device_free) || alike(f.device_total);
    auto const size = [&](std::size_t n) {
      auto const shown = detail::size_text(n);
      return exact && shown == requested ? shown + " (" + std::to_string(n) + " bytes)" : shown;
    };
    auto text =
        std::string{"gpumem: out of "} + (f.no_addresses ? "addresses (" : "memory (") + to_string(reason) + ")";
    if (resource) text += " in '" + std::string{resource} + "'";
    text += ": requested " + size(f.requested) + ", live " + size(f.live) + ", reserved " + size(f.reserved) +
            ", largest free range " + size(f.largest_free);
    if (f.free_ranges) text += ", free " + size(f.free) + " in " + std::to_string(f.free_ranges) + " ranges";
    if (f.free_in_use) {
      text += ", free but still in use " + size(f.free_in_use) + " on " + std::to_string(f.in_use_streams) + " streams";
    }
    if (f.quarantined) text += ", quarantined " + size(f.quarantined);
    if (f.largest_block) text += ", blocks of at most " + size(f.largest_block);
    if (f.limit) text += ", limit " + size(f.limit);
    if (f.device >= 0) {
      text += "; device " + std::to_string(f.device) + " has " + size(f.device_free) + " of " + size(f.device_total) +
              " free";
    }
    text += "; stream " + std::to_string(f.stream);
    if (f.no_addresses) {
      text += "; the process has no addresses left for so many bytes: raise `ulimit -v`, give each pool a limit, set "
              "the option address_space to what fits, or use pools with pages = false";
    }
    return text;
  }

private:
  out_of_memory_info info_;
  std::runtime_error text_; // a std::runtime_error copies its text without throwing
  outcome reason_;
};

/// Thrown for outcomes such as stopped, deadline and closed: neither exhaustion nor an error of the driver. Class
/// `pool` of <gpumem/pool.hpp> also throws it for an error of the driver. Then why().code is that error.
class acquire_error : public std::runtime_error {
public:
  /// Makes the text of what() from the failure.
  explicit acquire_error(failure const& failure) : acquire_error{failure, describe(failure)} {}
  /// Uses `text` as the text of what().
  acquire_error(failure const& failure, std::string const& text) : std::runtime_error{text}, failure_{failure} {}
  /// Returns the outcome of the request.
  outcome reason() const noexcept { return failure_.reason; }
  /// Returns the outcome, its code and the requested bytes.
  failure const& why() const noexcept { return failure_; }

private:
  static std::string describe(failure const& failure) {
    if (failure.requested == 0) return std::string{"gpumem: a wait was not completed: "} + to_string(failure.reason);
    auto const text = "gpumem: a request for " + detail::size_text(failure.requested) +
                      " was not granted: " + to_string(failure.reason);
    return failure.reason == outcome::stalled ? text + "; describe_waiting() of the pool says what holds its memory"
                                              : text;
  }

  failure failure_;
};

} // namespace gpumem

#pragma GCC visibility pop
