// The statistics of a resource.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem {

/// Statistics of a resource: bytes, and counts since its creation; 0 if the resource does not keep a figure. Those of a
/// pool are read part by part while its threads go on, so that they belong to slightly different times.
struct statistics {
  std::size_t live = 0;          ///< requested bytes that the host has not freed yet, whatever the streams have done
  std::size_t allocated = 0;     ///< the same, rounded up; in a hardened pool with guards and the quarantine
  std::size_t cached = 0;        ///< freed, and in a thread cache
  std::size_t reserved = 0;      ///< got from the upstream
  std::size_t largest_free = 0;  ///< largest free range, whichever streams used it
  std::size_t limit = 0;         ///< most that may be reserved; 0: no limit
  std::size_t largest_block = 0; ///< requests for more bytes are refused as too large; 0: no bound but the limit
  std::size_t peak_live = 0;     ///< in a pool with several shards exact to 1/16 of the reserved bytes, and the cached
  std::size_t peak_reserved = 0; ///< at growth, before memory is given back
  std::size_t reserved_in_all = 0; ///< sum of all bytes that the upstream has given to a pool

  std::uint64_t allocations = 0;          ///< number of granted requests
  std::uint64_t frees = 0;                ///< number of freed blocks
  std::uint64_t failures = 0;             ///< number of requests that were not granted
  std::uint64_t upstream_allocations = 0; ///< number of times that the upstream gave memory
  std::uint64_t upstream_frees = 0;       ///< chunks or pages given back to the upstream
  std::uint64_t coalesces = 0;            ///< free neighbours joined
  std::uint64_t coalesces_refused = 0;    ///< not joined, because more than four streams would have used the range

  std::uint64_t reuse_same_stream = 0;  ///< the range was freed on the same stream
  std::uint64_t reuse_thread_cache = 0; ///< part of these: the block was in a thread cache
  std::uint64_t reuse_ordered = 0;      ///< the stream was already ordered after the range's frees
  std::uint64_t reuse_completed = 0;    ///< the host had seen the uses of the range complete
  std::uint64_t reuse_waited = 0;       ///< a wait was inserted into the stream
  std::uint64_t reuse_after_sync = 0;   ///< the host waited at out-of-memory

  std::size_t free = 0;             ///< neither allocated nor cached
  std::uint64_t free_ranges = 0;    ///< number of free ranges
  std::size_t free_in_use = 0;      ///< free bytes whose last use the host has not yet seen complete
  std::uint64_t in_use_streams = 0; ///< number of streams with such uses
  std::size_t quarantined = 0;      ///< in a hardened pool: freed and kept from reuse; allocated, not live

  std::uint64_t waiting = 0;        ///< requests that wait for memory
  std::size_t waiting_bytes = 0;    ///< bytes for which they ask
  std::uint64_t oldest_wait_ns = 0; ///< nanoseconds that the oldest of them has waited
};

} // namespace gpumem
