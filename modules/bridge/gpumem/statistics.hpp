// The statistics of a resource.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem {

/// Statistics of a resource: bytes, and counts since its creation. A number that the resource does not keep is 0. The
/// statistics of a pool are read part by part while other threads go on, so they belong to slightly different times.
struct statistics {
  std::size_t live = 0;            ///< requested bytes of blocks that the host has not freed yet
  std::size_t allocated = 0;       ///< rounded-up bytes of these blocks, plus guards and quarantine of a hardened pool
  std::size_t cached = 0;          ///< freed bytes in the caches of threads
  std::size_t reserved = 0;        ///< bytes that the resource has from its upstream
  std::size_t largest_free = 0;    ///< bytes of the largest free range, whichever streams used it
  std::size_t limit = 0;           ///< most bytes that may be reserved; 0: no limit
  std::size_t largest_block = 0;   ///< requests for more bytes are refused as too large; 0: no bound but the limit
  std::size_t peak_live = 0;       ///< highest `live`; with several shards off by at most `reserved` / 16 + `cached`
  std::size_t peak_reserved = 0;   ///< highest `reserved`
  std::size_t reserved_in_all = 0; ///< sum of all bytes that the upstream has ever given to a pool

  std::uint64_t allocations = 0; ///< number of granted requests
  std::uint64_t frees = 0;       ///< number of freed blocks
  std::uint64_t failures = 0;    ///< number of requests that ended without memory; those that wait count at their end
  std::uint64_t upstream_allocations = 0; ///< number of allocations from the upstream
  std::uint64_t upstream_frees = 0;       ///< number of chunks or pages given back to the upstream
  std::uint64_t coalesces = 0;            ///< number of times that two free neighbours were joined
  std::uint64_t coalesces_refused = 0;    ///< number of refused joins: more than four streams had used the two ranges

  std::uint64_t reuse_same_stream = 0;  ///< grants of memory that the same stream had freed
  std::uint64_t reuse_thread_cache = 0; ///< part of reuse_same_stream: the block came from a thread cache
  std::uint64_t reuse_ordered = 0;      ///< grants to a stream that was already ordered after the frees of the memory
  std::uint64_t reuse_completed = 0;    ///< grants of memory whose uses the host had seen complete
  std::uint64_t reuse_waited = 0;       ///< grants for which a wait was inserted into the stream
  std::uint64_t reuse_after_sync = 0;   ///< grants after a wait on the host, when memory had run out

  std::size_t free = 0;             ///< reserved bytes that are neither allocated nor cached
  std::uint64_t free_ranges = 0;    ///< number of free ranges
  std::size_t free_in_use = 0;      ///< free bytes whose last use the host has not seen complete yet
  std::uint64_t in_use_streams = 0; ///< number of streams whose work may still use free memory
  std::size_t quarantined = 0;      ///< freed bytes that a hardened pool keeps from reuse; `allocated` includes them

  std::uint64_t waiting = 0;        ///< number of requests that wait for memory
  std::size_t waiting_bytes = 0;    ///< bytes for which these requests ask
  std::uint64_t oldest_wait_ns = 0; ///< nanoseconds that the oldest of these requests has waited

  std::uint64_t shards = 0; ///< number of shards of a pool, without those that no thread uses any more
  std::size_t lent = 0;     ///< bytes of pages lent to buffers that map them elsewhere; `allocated` includes them
};

} // namespace gpumem
