// The options of a pool.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <limits>
#include <string>

namespace gpumem {

/// How far a pool goes to reuse memory that was freed on another stream.
enum class reuse_policy : unsigned char {
  ordered,   ///< only what the stream is already ordered after
  completed, ///< also what the host has seen complete
  wait,      ///< also behind a wait inserted into the stream, as a last resort
};

/// What a pool spends on finding what its callers do wrong; sizes in bytes. See pool_resource.
struct hardening_options {
  bool enabled = false;                           ///< without it the rest must be left as it is
  std::size_t guard = 256;                        ///< before and behind each block, at least; rounded up to 256
  std::size_t quarantine = std::size_t{64} << 20; ///< freed and complete memory kept from reuse; guards count
  std::size_t poison = std::size_t{64} << 10;     ///< most of a block that is filled and looked at
  std::size_t history = 4096;                     ///< allocations and frees remembered
};

/// Options of pool_resource; sizes in bytes.
struct pool_options {
  std::size_t initial_size = 0; ///< drawn from upstream at construction
  std::size_t limit = 0;        ///< most that may be reserved; 0: none. Pages are multiples of 2 MiB
  /// Reserved memory beyond this is given back in the background when whole chunks, or pages, are free and complete;
  /// it begins when there is an eighth more, so that what comes and goes about the threshold stays.
  std::size_t release_threshold = (std::numeric_limits<std::size_t>::max)();
  /// Share of the time that a pool over virtual pages may spend on moving free pages to where memory is missing, before
  /// it makes others: from 0 (it makes others at once) to 1 (no bound, so it reserves the least). A page counts as
  /// 40 us, and the pool saves up to 50 ms, which it has at first. Pages that it makes are paid from the same time, but
  /// are never refused for it. Looks at what other streams have completed take the same share at most, or 1/16 where
  /// that is more. A pool over chunks moves nothing, nor does one whose threads have shards, or one with
  /// reuse_policy::ordered.
  double effort = .05;
  /// A pool that is made of a device draws virtual pages if this is true, the device has them and `limit` is not less
  /// than one; otherwise, it draws chunks of cudaMalloc. `cudaIpcGetMemHandle` takes only memory of chunks, and
  /// `cudaDeviceEnablePeerAccess` opens only chunks to other devices: a program that needs either must say false.
  /// `export_page` exports pages, and virtual_pages_options name the devices that may access them. A pool over a given
  /// upstream ignores this option.
  bool pages = true;
  reuse_policy cross_stream = reuse_policy::wait;
  /// How often later requests may get memory before one that waits, because they ask for less; no more of the next in
  /// line are looked at. Each `allocate` beside requests that wait counts. What is freed after that is kept for the
  /// request that waits.
  unsigned max_overtakes = 16;
  /// Where requests wait and nothing is granted or freed for so long, one of them ends with outcome::stalled, whatever
  /// work holds the memory: after this time at the earliest, after twice the time at the latest. `scope` says which
  /// one. 0: only where all memory is held by scopes that wait. It should be longer than the work takes between two
  /// frees; in a hardened pool, where memory counts as freed when it leaves the quarantine, longer than any kernel too.
  std::chrono::nanoseconds stall_timeout = {};
  std::string name = "pool"; ///< in reports
  hardening_options hardened = {};
};

} // namespace gpumem
