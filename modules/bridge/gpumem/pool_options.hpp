// The options of a pool.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <string>

namespace gpumem {

/// How far a pool goes to reuse memory that was freed on another stream.
enum class reuse : unsigned char {
  own,       ///< only what the stream is already ordered after
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
  std::size_t limit = 0;        ///< most that may be reserved; 0: none. Of pages, in multiples of 2 MiB
  /// Reserved memory beyond this is given back in the background when whole chunks, or pages, are free and complete;
  /// it begins when there is an eighth more, so that what comes and goes about the threshold stays.
  std::size_t release_threshold = (std::numeric_limits<std::size_t>::max)();
  /// Share of the time that a pool over virtual pages may spend on moving free pages to where memory is missing, before
  /// it makes others: from 0 (it makes others at once, which is fastest) to 1 (no bound, so as little is reserved as
  /// can be). A page counts as 40 us, and a tenth of a second may be saved.
  double effort = 0;
  /// Of a pool that is made of a device: true draws virtual pages where the device has them, unless `limit` is less
  /// than one; false draws chunks of cudaMalloc. `cudaIpcGetMemHandle` takes only memory of chunks, and
  /// `cudaDeviceEnablePeerAccess` opens only those to other devices: whoever needs either must say false. Pages are
  /// exported with `export_page`, and opened to the devices that virtual_pages_options name. Of a pool over a given
  /// upstream this has no effect.
  bool pages = true;
  reuse cross_stream = reuse::wait;
  std::string name = "pool"; ///< in reports
  hardening_options hardened = {};
};

} // namespace gpumem
