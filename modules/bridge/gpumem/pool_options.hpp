// The options of a pool.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <limits>
#include <string>

namespace gpumem {

/// Tells when a stream may get memory that another stream has freed.
enum class reuse_policy : unsigned char {
  ordered,   ///< only memory whose uses are already ordered before the stream's new work
  completed, ///< also memory whose uses the host has seen complete
  wait,      ///< also other memory, as a last resort: a wait is inserted into the stream
};

/// Options of a hardened pool. It finds and reports double frees, wrong sizes, and writes outside a block or after its
/// free; see set_misuse_handler. Sizes are in bytes.
struct hardening_options {
  bool enabled = false; ///< if false, the other options must keep their defaults
  /// Least bytes of each guard, in steps of 256. Guards lie before and after each block, and no write may change them.
  std::size_t guard = 256;
  /// Bytes of freed blocks, with their guards, that are kept from reuse after their last use.
  std::size_t quarantine = std::size_t{64} << 20;
  std::size_t poison = std::size_t{64} << 10; ///< most bytes of a freed block that get a pattern, which is checked
  std::size_t history = 4096;                 ///< number of allocations and frees that are remembered
};

/// Options of a pool. Sizes are in bytes.
struct pool_options {
  std::size_t initial_size = 0; ///< bytes that are reserved at construction
  std::size_t limit = 0;        ///< most bytes that may be reserved; 0: no limit. Pages take multiples of 2 MiB of it
  /// Bytes of each chunk that a pool over an upstream allocates. A larger request gets a chunk of its own size. 0: a
  /// sixth of what the shard has, from 2 to 512 MiB. A pool that is made for a device uses chunks in place of pages if
  /// this is not 0.
  std::size_t chunk_size = 0;
  /// Each block takes at least these bytes. So a freed block can serve any request for fewer bytes. 0: no bound.
  std::size_t smallest_block = 0;
  /// A request fails as `too_large` if its bytes, rounded up to a size class, are more. 0: no bound.
  std::size_t largest_block = 0;
  /// Whether each thread, up to 64 threads, gets a shard of its own at its first request, for blocks of all sizes.
  /// Otherwise a thread gets one after it has found the lock of its shard taken often within some ten thousand calls.
  /// It then has its blocks up to 1 MiB there. All threads share the shard of larger blocks, which takes less memory
  /// and more time. A shard without a live block that the thread does not use for a while becomes free for other
  /// threads.
  bool shard_per_thread = false;
  /// When a request fails as `exhausted`, the pool appends its describe_memory() to this file. Empty: it does not.
  std::string failure_report = {};
  /// Reserved memory beyond this threshold is given back in the background, in whole chunks or pages that are free and
  /// that no stream uses any more. This begins when an eighth more than the threshold is reserved. So memory near the
  /// threshold is not given back and allocated again and again.
  std::size_t release_threshold = (std::numeric_limits<std::size_t>::max)();
  /// A pool over virtual pages moves free pages to where memory is missing, before it makes new pages. This is the most
  /// that the moves may take, as a share of the elapsed time. 0: the pool makes new pages immediately. 1: no bound, so
  /// the pool reserves the least. A moved page is charged with the time that pages took lately, at first with 40 us.
  /// The pool starts without saved time, and saves unspent time, 50 ms at most. A pause of 100 to 200 ms or more
  /// without a call earns no time. While no time is left the pool makes new pages of about 6 MiB, and does not move
  /// free ones. In the next pause the library's thread unmaps the same number of bytes of free pages, unless they are
  /// used again. While calls come, it unmaps them as far as saved time pays. Smaller new pages are charged too, and so
  /// are pages that the thread unmaps while the pool works. Calls that ask the driver for completed work of other
  /// streams take at most the same share of the time, or 1/16 if that is more.
  ///
  /// If only the stream of the request still uses free pages, `allocate` waits for that work before the pool makes new
  /// pages. These waits are charged too. While several threads use shards of their own, pages move there only with an
  /// effort of 1, or at the limit. Pools over chunks and pools with reuse_policy::ordered move no pages.
  double effort = .05;
  /// A pool that is made for a device uses virtual pages if this is true, the device supports them and `limit` is at
  /// least one page. Otherwise it uses chunks from cudaMalloc. `cudaIpcGetMemHandle` takes only memory of chunks, and
  /// `cudaDeviceEnablePeerAccess` opens only chunks to other devices: a program that needs either must set this to
  /// false. Pages are exported by `export_page`, and virtual_pages_options name the devices that may access them. A
  /// pool over a given upstream ignores this option.
  bool pages = true;
  reuse_policy cross_stream = reuse_policy::wait; ///< rule for memory that another stream freed
  /// How often later, smaller requests may get memory before a waiting request. After that, freed memory is kept for
  /// the waiting request. If the memory does not suffice for the waiting request, the pool looks for a smaller one only
  /// among this many requests after it. Each `allocate` that succeeds while requests wait counts as having overtaken
  /// them.
  unsigned max_overtakes = 16;
  /// If requests wait and nothing is granted or freed for this time, one of them ends with outcome::stalled. It ends
  /// after this time at the earliest, after twice this time at the latest. A scope is a unit of work that holds memory;
  /// the comment of class `scope` says which request ends. 0: a request ends only if scopes that wait hold all memory.
  /// The time should be longer than the work takes between two frees. In a hardened pool, memory counts as freed only
  /// when it leaves the quarantine. There the time should also be longer than any kernel.
  std::chrono::nanoseconds stall_timeout = {};
  std::string name = "pool"; ///< name in reports
  /// Makes each block one allocation of the upstream, or of the driver in stream order. So compute-sanitizer sees the
  /// block with its exact size and lifetime. The environment variable GPUMEM_PASS_THROUGH=1 sets this option for all
  /// pools of a process. The pool then keeps no memory and has no limit, and no request waits for memory. A pool that
  /// was made with virtual_pages_options of its own ignores this option.
  bool pass_through = false;
  hardening_options hardened = {}; ///< whether and how the pool finds misuse
};

} // namespace gpumem
