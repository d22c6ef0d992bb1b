// What a resource tells about itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem {

/// Statistics of a resource. Bytes and counts since its creation; 0 where a resource does not keep a figure. Those of
/// a pool are read part by part, while its threads go on elsewhere: of slightly different moments.
struct statistics {
  std::size_t live = 0;          ///< requested bytes not yet freed, in host order
  std::size_t allocated = 0;     ///< the same, rounded up; of a hardened pool with guards, and with what is quarantined
  std::size_t cached = 0;        ///< freed, and in a thread cache
  std::size_t reserved = 0;      ///< drawn from upstream
  std::size_t largest_free = 0;  ///< largest free range, whatever its order
  std::size_t limit = 0;         ///< most that may be reserved; 0: none
  std::size_t peak_live = 0;     ///< where threads met in a pool: to 1/16 of what is reserved, and what they keep
  std::size_t peak_reserved = 0; ///< at growth, before anything is given back

  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t failures = 0;
  std::uint64_t upstream_allocations = 0; ///< times that memory was drawn from upstream
  std::uint64_t upstream_frees = 0;       ///< chunks or pages given back to upstream
  std::uint64_t coalesces = 0;            ///< free neighbours joined
  std::uint64_t coalesces_refused = 0;    ///< not joined, because more than four streams would have used the range

  std::uint64_t reuse_same_stream = 0;  ///< the range was freed on the same stream
  std::uint64_t reuse_thread_cache = 0; ///< of these: a thread had kept it
  std::uint64_t reuse_ordered = 0;      ///< the stream was already ordered after its frees
  std::uint64_t reuse_completed = 0;    ///< the host had seen its frees complete
  std::uint64_t reuse_waited = 0;       ///< a wait was inserted
  std::uint64_t reuse_after_sync = 0;   ///< the host waited at out-of-memory

  std::size_t free = 0;             ///< neither allocated nor cached
  std::uint64_t free_ranges = 0;    ///< in so many pieces
  std::size_t free_in_use = 0;      ///< of what is free: what the host has not yet seen the last use of
  std::uint64_t in_use_streams = 0; ///< whose uses those are
  std::size_t quarantined = 0;      ///< of a hardened pool: freed and kept from reuse; allocated, not live

  std::uint64_t waiting = 0;        ///< requests that wait for memory
  std::size_t waiting_bytes = 0;    ///< that these requests ask for
  std::uint64_t oldest_wait_ns = 0; ///< nanoseconds that the oldest of them has waited
};

} // namespace gpumem
