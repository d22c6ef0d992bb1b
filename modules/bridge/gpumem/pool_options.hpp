// The options of a pool.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <limits>
#include <string>

namespace gpumem {

/// Which memory a pool reuses that was freed on another stream.
enum class reuse_policy : unsigned char {
  ordered,   ///< only memory whose uses the stream is already ordered after
  completed, ///< also memory whose uses the host has seen complete
  wait,      ///< also other memory, after a wait that is inserted into the stream, as a last resort
};

/// Options of a hardened pool, which finds misuse; sizes in bytes. A hardened pool reports double
/// frees, wrong sizes, and writes outside a block or after its free; see set_misuse_handler.
struct hardening_options {
  bool enabled = false;                           ///< if false, the other options must keep their defaults
  std::size_t guard = 256;                        ///< least bytes before and after each block; rounded up to 256
  std::size_t quarantine = std::size_t{64} << 20; ///< freed and complete bytes kept from reuse, with their guards
  std::size_t poison = std::size_t{64} << 10;     ///< most bytes of a block that are filled and checked
  std::size_t history = 4096;                     ///< number of allocations and frees that are remembered
};

/// Options of pool_resource; sizes in bytes.
struct pool_options {
  std::size_t initial_size = 0; ///< bytes that are reserved at construction
  std::size_t limit = 0;        ///< most bytes that may be reserved; 0: no limit. Pages are multiples of 2 MiB
  /// Bytes of each chunk that a pool over an upstream allocates. A larger request gets a chunk of its own size. 0: a
  /// sixth of what the shard has, from 2 to 512 MiB. A pool that is made for a device then uses chunks in place of
  /// pages.
  std::size_t chunk_size = 0;
  /// Each block takes at least these bytes, so that a freed block serves each request for fewer. 0: no bound.
  std::size_t smallest_block = 0;
  /// Requests for more bytes, rounded up to a size class, fail as `too_large`. 0: no bound.
  std::size_t largest_block = 0;
  /// Whether each thread, 64 of them at most, gets a shard of its own at its first request. Otherwise a thread gets one
  /// after it has often found a lock taken.
  bool shard_per_thread = false;
  /// A file to which the pool appends describe_memory() when a request fails as `exhausted`; empty: none.
  std::string failure_report = {};
  /// Reserved memory beyond this is given back in the background, in whole chunks or pages that are free and complete.
  /// It begins when an eighth more is reserved, so that memory that comes and goes about the threshold stays.
  std::size_t release_threshold = (std::numeric_limits<std::size_t>::max)();
  /// Share of the time that a pool over virtual pages may spend on moving free pages to where memory is missing, before
  /// it makes new ones. 0: it makes new pages at once; 1: no bound, so it reserves the least. A page counts as 40 us.
  /// The pool can save 50 ms of this time, and starts with them. New pages are paid from the same time, but are
  /// never refused for it. Polls for the completed work of other streams take at most the same share, or 1/16 if that
  /// is more. Waits of `allocate` for the work of its own stream count as well: they come before new pages if only that
  /// stream still uses free pages. A pool over chunks moves nothing, nor does one whose threads have shards, or one with
  /// reuse_policy::ordered.
  double effort = .05;
  /// A pool that is made for a device uses virtual pages if this is true, the device has them and `limit` is at least
  /// one page. Otherwise it uses chunks from cudaMalloc. `cudaIpcGetMemHandle` takes only memory of chunks, and
  /// `cudaDeviceEnablePeerAccess` opens only chunks to other devices: a program that needs either must set false.
  /// `export_page` exports pages, and virtual_pages_options name the devices that may access them. A pool over a given
  /// upstream ignores this option. Under compute-sanitizer, pools over chunks of cuda_resource, managed_resource or
  /// pinned_resource tell the tool of each block; tools refuse pages.
  bool pages = true;
  reuse_policy cross_stream = reuse_policy::wait; ///< which memory is reused that another stream freed
  /// Number of times that later requests, which ask for less, may get memory before a waiting one. It is also the
  /// number of requests after that one that are considered. Each `allocate` while requests wait counts. After that,
  /// freed memory is kept for the waiting request.
  unsigned max_overtakes = 16;
  /// If requests wait and nothing is granted or freed for this time, one of them ends with outcome::stalled, whatever
  /// work holds the memory. It ends after this time at the earliest, after twice this time at the latest. `scope` says
  /// which one. 0: a request ends only if scopes that wait hold all memory. The time should be longer than the work
  /// takes between two frees. In a hardened pool, where memory counts as freed when it leaves the quarantine, it should
  /// also be longer than any kernel.
  std::chrono::nanoseconds stall_timeout = {};
  std::string name = "pool"; ///< in reports
  /// Makes each block one allocation of the upstream, or of the driver in stream order, so that compute-sanitizer sees
  /// it with its exact size and lifetime. The environment variable GPUMEM_PASS_THROUGH=1 does it for all pools of a
  /// process. The pool then keeps nothing, and has no limit: a request does not wait for memory. A pool whose options
  /// of pages ask for something stays as it is.
  bool pass_through = false;
  hardening_options hardened = {}; ///< whether and how the pool finds misuse
};

} // namespace gpumem
