// The C ABI: pools of GPU memory for C, for compilers without modules, and for all languages that call C functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/version.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define GPUMEM_NOEXCEPT noexcept
extern "C" {
#else
#define GPUMEM_NOEXCEPT
#endif
#pragma GCC visibility push(default)

/// For all functions: any thread may call them, and several threads may use one pool at the same time. A function that
/// does not return GPUMEM_GRANTED has done nothing and has written nothing through its out-pointers. It has left a text
/// for gpumem_last_error. A NULL pool or out-pointer gives GPUMEM_INVALID_ARGUMENT. Sizes are in bytes.
///
/// If a process has used gpumem, its children after fork() cannot use it. In such a child, the functions that make a
/// pool, allocate or reserve return GPUMEM_DEVICE_LOST immediately. gpumem_synchronize returns GPUMEM_DEADLINE. All
/// other functions do nothing and return zeros. A device that was reset, or lost by an error, stays lost to the
/// process: calls for it return GPUMEM_DEVICE_LOST from then on.
///
/// A stream is a CUstream or cudaStream_t. NULL is a default stream whose kind (legacy or per-thread) only the caller's
/// compiler knows. So gpumem takes it as a different stream for each calling thread. A caller that knows the kind
/// passes one of the two names below. A default stream belongs to the current device, which must be that of the pool.

#define GPUMEM_STREAM_LEGACY ((void*)1)     ///< the legacy default stream: one for all threads
#define GPUMEM_STREAM_PER_THREAD ((void*)2) ///< the calling thread's default stream

/// An alignment that suffices for every type. Pass it if no other one is needed.
#define GPUMEM_ALIGNMENT 256

// NOLINTBEGIN(modernize-use-using): C has no other way
/// The result of a call. The values are those of gpumem::outcome, the C++ enum, and never change.
typedef enum gpumem_outcome {
  GPUMEM_GRANTED = 0,             ///< the call has succeeded
  GPUMEM_STOPPED = 1,             ///< the caller requested a stop before memory was granted
  GPUMEM_DEADLINE = 2,            ///< the deadline passed while waiting
  GPUMEM_CLOSED = 3,              ///< the pool was closed
  GPUMEM_TOO_LARGE = 4,           ///< the request can never be met
  GPUMEM_EXHAUSTED = 5,           ///< there is no memory now
  GPUMEM_PREEMPTED = 6,           ///< ended in favour of older work; the caller must free its memory and begin again
  GPUMEM_STALLED = 7,             ///< no memory can come: the work that holds it waits too
  GPUMEM_CAPTURE_UNSUPPORTED = 8, ///< the stream is capturing a graph, and no capture scope serves it
  GPUMEM_DEVICE_LOST = 9,         ///< the device was lost by an error or reset, or the process is exiting or was forked
  GPUMEM_INVALID_ARGUMENT = 10,   ///< NULL, an unknown option, a pointer that is not the pool's, a wrong size, …
  GPUMEM_DRIVER_ERROR = 11        ///< another error of the driver, or no driver
} gpumem_outcome;

/// A pool over the memory of one device, with virtual pages if the device supports them. It allocates by best fit and
/// joins free neighbours. If a stream gets memory that another stream freed, its work is ordered after all uses of
/// that memory.
typedef struct gpumem_pool gpumem_pool;

/// Statistics of a pool: bytes, and counts since it was made. The caller sets `size` before the call. Newer versions
/// add fields at the end; a caller that was compiled with fewer fields gets only those. A hardened pool is one that
/// finds misuse: see gpumem_make_pool.
typedef struct gpumem_statistics {
  size_t size;                   ///< sizeof(gpumem_statistics) of the caller
  uint64_t live;                 ///< requested bytes of blocks that the host has not freed yet
  uint64_t allocated;            ///< rounded-up bytes of these blocks
  uint64_t reserved;             ///< bytes got from the device
  uint64_t largest_free;         ///< bytes of the largest free range, whichever streams used it
  uint64_t limit;                ///< most bytes that may be reserved; 0: no limit
  uint64_t peak_live;            ///< highest `live`
  uint64_t peak_reserved;        ///< highest `reserved`
  uint64_t allocations;          ///< number of granted requests
  uint64_t frees;                ///< number of freed blocks
  uint64_t failures;             ///< number of requests that ended without memory
  uint64_t upstream_allocations; ///< number of allocations from the device
  uint64_t upstream_frees;       ///< number of pages or chunks given back to the device
  uint64_t coalesces;            ///< number of times that two free neighbours were joined
  uint64_t coalesces_refused;    ///< number of refused joins: more than four streams had used the two neighbours
  uint64_t reuse_same_stream;    ///< grants of memory that the same stream had freed
  uint64_t reuse_ordered;        ///< grants to a stream that was already ordered after the frees of the memory
  uint64_t reuse_completed;      ///< grants of memory whose uses the host had seen complete
  uint64_t reuse_waited;         ///< grants for which a wait was inserted into the stream
  uint64_t reuse_after_sync;     ///< grants after a wait on the host, when memory had run out
  uint64_t free;                 ///< reserved bytes that are neither `allocated` nor `cached`
  uint64_t free_ranges;          ///< number of free ranges
  uint64_t free_in_use;          ///< free bytes whose last use the host has not seen complete yet
  uint64_t in_use_streams;       ///< number of streams whose work may still use free memory
  uint64_t quarantined;          ///< freed bytes that a hardened pool keeps from reuse; `allocated` includes them
  uint64_t cached;               ///< freed bytes in the caches of threads
  uint64_t reuse_thread_cache;   ///< part of reuse_same_stream: the block came from a thread cache
  uint64_t largest_block;        ///< requests for more bytes are refused as too large; 0: no bound but the limit
  uint64_t waiting;              ///< number of requests that wait for memory
  uint64_t waiting_bytes;        ///< bytes for which these requests ask
  uint64_t oldest_wait_ns;       ///< nanoseconds that the oldest of these requests has waited
  uint64_t reserved_in_all;      ///< sum of all bytes that the device has ever given to the pool
  uint64_t shards;               ///< number of shards that threads use now
  uint64_t lent;                 ///< bytes of pages lent to buffers that map them elsewhere; `allocated` includes them
} gpumem_statistics;

/// Details of a failed call. Numbers are bytes unless stated otherwise; 0 if they are not known. The caller sets
/// `size`, as in gpumem_statistics.
typedef struct gpumem_failure {
  size_t size;             ///< sizeof(gpumem_failure) of the caller
  uint32_t outcome;        ///< a gpumem_outcome; GPUMEM_GRANTED: no call of the thread has failed
  int32_t code;            ///< the driver's error (CUresult), if one was the cause. For GPUMEM_INVALID_ARGUMENT:
                           ///< -1 for a wrong alignment, -2 for a default stream of another device. The code is -5 for
                           ///< a stream of a device to which the pool is not open. It is -6 for a call from a function
                           ///< that the pool calls while it changes its memory. For GPUMEM_EXHAUSTED it may be -1: the
                           ///< host had no memory. For GPUMEM_EXHAUSTED and GPUMEM_TOO_LARGE it may be -2: the
                           ///< process has no addresses, although the device has memory. Otherwise 0
  uint64_t requested;      ///< bytes that the call requested
  uint64_t live;           ///< live bytes of the pool. This field and all below are known only for GPUMEM_EXHAUSTED and
                           ///< GPUMEM_TOO_LARGE
  uint64_t reserved;       ///< bytes got from the device
  uint64_t largest_free;   ///< bytes of the largest free range
  uint64_t limit;          ///< most bytes that may be reserved; 0: no limit
  uint64_t device_free;    ///< free bytes of the device
  uint64_t device_total;   ///< all bytes of the device
  uint64_t free;           ///< reserved bytes that are neither allocated nor cached
  uint64_t free_ranges;    ///< number of free ranges
  uint64_t free_in_use;    ///< free bytes whose last use the host has not seen complete yet
  uint64_t in_use_streams; ///< number of streams whose work may still use free memory
  uint64_t quarantined;    ///< freed bytes that a hardened pool keeps from reuse
  uint64_t stream;         ///< id of the request's stream
  int64_t device;          ///< ordinal; -1: not known
} gpumem_failure;

/// Two functions of the caller that allocate and free memory for a pool: see gpumem_make_pool_over. Any thread may call
/// them, also several threads at the same time. During the calls the pool's device is current, and no lock of gpumem is
/// held. The functions may call the pool; a call for which the pool would have to call them again gives
/// GPUMEM_INVALID_ARGUMENT.
typedef struct gpumem_callbacks {
  size_t size;   ///< sizeof(gpumem_callbacks) of the caller
  void* context; ///< passed to both functions; must live as long as the pool and its blocks
  /// Returns memory at a multiple of `alignment`; NULL if there is none. Work that is enqueued on the stream from now
  /// on may use the memory.
  void* (*allocate)(void* context, void* stream, size_t bytes, size_t alignment);
  /// Frees the memory in the order of the stream: work that was enqueued before may still use it.
  void (*free)(void* context, void* stream, void* pointer, size_t bytes, size_t alignment);
} gpumem_callbacks;

/// A function of the caller that gpumem calls when it maps or unmaps pages of a pool: see gpumem_make_observed_pool.
typedef struct gpumem_page_observer {
  size_t size;   ///< sizeof(gpumem_page_observer) of the caller
  void* context; ///< passed to the function; must live as long as the pool and its blocks
  /// `mapped` is 1 after the bytes at the address were mapped, 0 before they are unmapped. The call may come on any
  /// thread. The function may allocate from the pool what the pool has free, free, and read statistics. A call for
  /// which the pool would have to map or unmap pages too gives GPUMEM_INVALID_ARGUMENT.
  void (*changed)(void* context, void* address, size_t bytes, int mapped);
} gpumem_page_observer;

/// The block in which a pointer lies. The caller sets `size`, as in gpumem_statistics.
typedef struct gpumem_block {
  size_t size;        ///< sizeof(gpumem_block) of the caller
  void* base;         ///< start of the block or of the free range; NULL: the pool does not own the pointer
  uint64_t bytes;     ///< requested bytes; 0 if the memory is free
  uint64_t allocated; ///< rounded-up bytes; the size of the free range if the memory is free
  uint64_t stream;    ///< id of the stream for which the block was allocated
  uint64_t live;      ///< 1: a live block; 0: the memory is free
} gpumem_block;

/// A part of a pool's reserved memory. The library sets `size`.
typedef struct gpumem_range {
  size_t size;           ///< sizeof(gpumem_range) of the library
  void* base;            ///< start of the range
  uint64_t bytes;        ///< size of the range
  uint64_t requested;    ///< requested bytes of a live block; 0 for other memory
  uint64_t stream;       ///< id of the stream for which a live block was allocated; 0 for other memory
  uint64_t live;         ///< 1: a live block; 0: free or cached
  void* region;          ///< start of the contiguous memory (a chunk or pages) in which the range lies
  uint64_t region_bytes; ///< bytes of that memory
} gpumem_range;
// NOLINTEND(modernize-use-using)

/// Returns the version of the library as one number, in the form of GPUMEM_VERSION. That macro is the version of the
/// headers.
uint32_t gpumem_version(void) GPUMEM_NOEXCEPT;

/// Returns the outcome's name, such as "granted", or "unknown outcome" for any other value. The text is never freed.
char const* gpumem_outcome_name(gpumem_outcome outcome) GPUMEM_NOEXCEPT;

/// Returns a text about the calling thread's last failed call; "" if none failed. The text lives until the thread's
/// next failure.
char const* gpumem_last_error(void) GPUMEM_NOEXCEPT;

/// Writes details of the calling thread's last failed call.
gpumem_outcome gpumem_read_failure(gpumem_failure* failure) GPUMEM_NOEXCEPT;

/// Makes a pool over the memory of the device with that ordinal. The pool has one reference, which the caller owns.
/// Options are `name=value`, separated by commas; NULL and "" mean no options:
///   limit=8GiB             most bytes that may be reserved; 0: no limit. A pool over pages reserves multiples of 2 MiB
///   initial_size=1GiB      bytes that are reserved when the pool is made
///   release_threshold=2GiB bytes that may stay reserved. Once an eighth more is reserved, the pool gives memory back
///                          until it is down to this size. Only whole pages or chunks go back, if they are free and no
///                          stream uses them any more. Without this option, only gpumem_trim and a request that finds
///                          no memory give memory back
///   pages=on               on (the default): use virtual pages, if the device has them and the limit is at least one
///                          page; off: use chunks from cudaMalloc. cudaIpcGetMemHandle takes only memory of chunks, and
///                          cudaDeviceEnablePeerAccess opens only chunks to other devices: a program that needs either
///                          must pass pages=off
///   effort=0.05            share of the time, from 0 to 1, that a pool over virtual pages may spend on moving free
///                          pages to where memory is missing, before it makes new ones; 0: none; 1: no bound, so the
///                          pool reserves the least
///   cross_stream=wait      when a stream S gets memory that another stream freed. ordered: only if S already comes
///                          after all uses of the memory. completed: also if the host has seen these uses complete.
///                          wait (the default): also while these uses run; a wait for them is then inserted into S
///   name=training          the pool's name in reports
///   hardened=on            the pool finds misuse: double frees, writes outside a block, writes after a free. A report
///                          on stderr shows overwritten bytes, and the allocations and frees of the memory
///   guard=256, quarantine=64MiB, poison=64KiB, history=4096
///                          for a hardened pool, in this order: bytes around each block that no write may change; freed
///                          bytes kept from reuse; most bytes of a freed block that are filled and checked; number of
///                          allocations and frees that are remembered
///   chunk_size=64MiB       if not 0, the pool uses chunks of this size in place of pages
///   smallest_block=4KiB    each block takes at least these bytes
///   largest_block=1GiB     requests for more give GPUMEM_TOO_LARGE
///   shard_per_thread=on    each thread, up to 64 threads, gets a shard of its own at its first request, also for
///                          blocks of more than 1 MiB
///   max_overtakes=16       how often later requests may get memory before a request that waits
///   stall_timeout=1.5s     a request that waits ends as GPUMEM_STALLED if nothing is freed for this long
///   pass_through=on        each block is one allocation of the driver, so that compute-sanitizer sees it; the
///                          environment variable GPUMEM_PASS_THROUGH=1 does the same
///   failure_report=FILE    when a request finds no memory, a report is appended to FILE that shows which streams hold
///                          the memory
/// Options may also describe a stack of resources, the outermost first: `name(resource, option=value, …)`, for
/// instance `binning(pool(managed,limit=80GiB),bins=256KiB:fixed)`. The resources are:
///   cuda, async, managed, pinned, async_managed
///                          memory of the driver; each block is allocated by a driver call
///   system(headroom=0)     memory of the host's allocator, on devices that can access it (HMM, ATS). An allocation
///                          that would leave less than `headroom` bytes of device memory free prefers the host
///   pool(resource, …)      a pool with the options above; if no resource is given, over the memory of the device
///   fixed(resource, block_size=1MiB, blocks_per_chunk=128, …)
///                          a pool of blocks of one size. The option block_size must be given. If no resource is given,
///                          the pool is over cuda
///   arena(resource, arena_size=64MiB, max_arenas=16, …)
///                          a pool in which each thread allocates from chunks of its own, the arenas. If no resource is
///                          given, the pool is over cuda
///   binning(resource, bins=256KiB:fixed;1MiB:upstream;4MiB:pool(cuda), min_exponent=10, max_exponent=20,
///           blocks_per_chunk=128)
///                          a request is served by the bin of the smallest size that holds it: by blocks of that size
///                          from the resource (fixed), by the resource itself (upstream), or by another resource. The
///                          exponents add bins whose sizes are powers of two
///   limiting(resource, limit=8GiB), statistics(resource),
///   logging(resource, file=FILE, format=csv, keep_last=0), where `format` may also be binary,
///   prefetch(resource, to=device), where `to` may also be host, aligned(resource, alignment=256, threshold=0),
///   tracking(resource, stack_depth=16, freed_remembered=1024, report=stderr), where `report` may also be a file,
///   fallback(resource, resource), thread_safe(resource),
///   failing(resource, every=0, first=0, count=1, probability=0, seed=1)
///                          the adaptors of the C++ library
/// The resources pool, fixed and arena are pools, and so are logging, statistics and tracking over a pool: they take
/// all calls that a pool takes. If the outermost resource of a stack is not a pool,
/// gpumem_synchronize and gpumem_reset_peaks go to all pools in the stack.
/// gpumem_synchronize does not wait for frees into a driver's pool (async). A free makes its stream wait for the uses
/// that gpumem_record_use declared. Statistics are those of the stack alone, also if other stacks use the same source.
///
/// A size is a number of bytes, or a number with a unit and perhaps a fraction: B, KiB, MiB, GiB, TiB, or kB, KB, MB,
/// GB, TB. Unknown, repeated, malformed and contradicting options give GPUMEM_INVALID_ARGUMENT, as does a device that
/// does not exist.
gpumem_outcome gpumem_make_pool(int device, char const* options, gpumem_pool** pool) GPUMEM_NOEXCEPT;

/// Makes a pool over memory of the caller, otherwise like gpumem_make_pool. In the options, `callbacks` is a resource
/// like `cuda`. Options that describe no stack are those of `pool(callbacks, …)`. The callbacks are copied. A function
/// that is NULL, or a `size` that is too small, gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_make_pool_over(int device, gpumem_callbacks const* callbacks, char const* options,
                                     gpumem_pool** pool) GPUMEM_NOEXCEPT;

/// Makes a pool like gpumem_make_pool that calls the observer when pages are mapped and unmapped. For programs that
/// register the pool's memory with another library. A stack, a pool without pages, and a device without virtual memory
/// give GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_make_observed_pool(int device, gpumem_page_observer const* observer, char const* options,
                                         gpumem_pool** pool) GPUMEM_NOEXCEPT;

/// Adds a reference.
gpumem_outcome gpumem_retain(gpumem_pool* pool) GPUMEM_NOEXCEPT;

/// Drops a reference. After the last one was dropped, the pool gives its memory back once the host has seen all uses
/// complete; the call does not wait for that. Blocks that are still live stay valid and reserved, and cannot be freed
/// any more. Memory that was freed on a stream shortly before may stay until a later call of this library is given the
/// stream. In all such pools together that is about 64 MiB, or 1/64 of the reserved bytes if that is more; one pool
/// alone can keep more. gpumem_release_on leaves nothing.
gpumem_outcome gpumem_release(gpumem_pool* pool) GPUMEM_NOEXCEPT;

/// Drops a reference like gpumem_release, and records an event on each of the streams: those on which blocks of the
/// pool were freed and that still live. All memory of the pool then goes back once the work of these streams is
/// complete. If a stream captures, the call drops nothing and returns GPUMEM_CAPTURE_UNSUPPORTED; it can be repeated.
/// `streams` may be NULL if `count` is 0.
gpumem_outcome gpumem_release_on(gpumem_pool* pool, void* const* streams, size_t count) GPUMEM_NOEXCEPT;

/// Allocates memory. Work that is enqueued on the stream from now on may use it. 0 bytes give NULL. The alignment may
/// be any power of two. A stream that captures gives GPUMEM_CAPTURE_UNSUPPORTED, unless a capture scope is open: see
/// graph_memory.h.
gpumem_outcome gpumem_allocate(gpumem_pool* pool, void* stream, size_t bytes, size_t alignment,
                               void** pointer) GPUMEM_NOEXCEPT;

/// Allocates like gpumem_allocate, but a request that finds no memory waits in line while the calling thread sleeps. It
/// waits for at most `nanoseconds`; UINT64_MAX: without end. Returns GPUMEM_DEADLINE after that time, and
/// GPUMEM_STALLED if no memory can come. A request on a stream that captures never waits.
gpumem_outcome gpumem_acquire(gpumem_pool* pool, void* stream, size_t bytes, size_t alignment, uint64_t nanoseconds,
                              void** pointer) GPUMEM_NOEXCEPT;

/// Frees in the order of the stream: work enqueued on it earlier may still use the memory. The stream must be ordered
/// after the one for which the memory was allocated, and after all uses that gpumem_record_use did not declare. Freeing
/// NULL does nothing. A pointer that is not live in the pool gives GPUMEM_INVALID_ARGUMENT. A free on a capturing
/// stream is completed by the pool's next call outside the capture. While the process exits, frees do nothing.
gpumem_outcome gpumem_free(gpumem_pool* pool, void* stream, void* pointer) GPUMEM_NOEXCEPT;

/// Frees like gpumem_free, with the size that was requested. Any other size gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_free_sized(gpumem_pool* pool, void* stream, void* pointer, size_t bytes) GPUMEM_NOEXCEPT;

/// Frees a block of which the caller knows only the address. The pool is the one that gpumem_pool_of finds; if it finds
/// none, the call gives GPUMEM_INVALID_ARGUMENT. The free is in the order of the stream for which the block was
/// allocated; that stream must still live. Freeing NULL does nothing.
gpumem_outcome gpumem_free_pointer(void* pointer) GPUMEM_NOEXCEPT;

/// Writes the pool that has a live block starting at the address; NULL if there is none. Only pools that functions of
/// this library have made, and that have a reference, are searched. The call adds no reference.
gpumem_outcome gpumem_pool_of(void const* pointer, gpumem_pool** pool) GPUMEM_NOEXCEPT;

/// Allocates memory that work on any stream may use immediately, since all its earlier uses are complete.
gpumem_outcome gpumem_allocate_sync(gpumem_pool* pool, size_t bytes, size_t alignment, void** pointer) GPUMEM_NOEXCEPT;

/// Frees memory. The caller guarantees that all uses are complete and that the host has seen that.
gpumem_outcome gpumem_free_sync(gpumem_pool* pool, void* pointer, size_t bytes) GPUMEM_NOEXCEPT;

/// Declares that all uses of the block on `stream` are enqueued. The free of the block need not be ordered after these
/// uses: gpumem orders the reuse of the memory after them. The uses of at most three streams are kept; a fourth stream
/// first waits for the use of one of them. NULL does nothing.
gpumem_outcome gpumem_record_use(gpumem_pool* pool, void* pointer, void* stream) GPUMEM_NOEXCEPT;

/// Waits on the host for all work that still uses free memory, so that the memory can go back to the device. Returns
/// GPUMEM_DEADLINE if that takes longer than `nanoseconds`, or longer than one hour.
gpumem_outcome gpumem_synchronize(gpumem_pool* pool, uint64_t nanoseconds) GPUMEM_NOEXCEPT;

/// Gives free memory beyond `keep` reserved bytes back to the device, and writes the number of bytes given back. Only
/// whole pages or chunks go back, and only if the host has seen all their uses complete. The call waits for nothing; to
/// wait for these uses, call gpumem_synchronize before.
gpumem_outcome gpumem_trim(gpumem_pool* pool, size_t keep, size_t* given_back) GPUMEM_NOEXCEPT;

/// Makes the pool have at least `bytes` reserved bytes in all: reserves the missing bytes in one piece. Does nothing if
/// none are missing. A stack whose outermost resource is not a pool gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_reserve(gpumem_pool* pool, size_t bytes) GPUMEM_NOEXCEPT;

/// Sets the most bytes that may be reserved; 0: no limit. The pool keeps what it has reserved beyond the new limit, but
/// reserves no more. Requests that wait for more than the limit end as GPUMEM_TOO_LARGE. A stack whose outermost
/// resource is not a pool gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_set_limit(gpumem_pool* pool, size_t bytes) GPUMEM_NOEXCEPT;

/// Makes `peak_live` and `peak_reserved` of the statistics begin anew.
gpumem_outcome gpumem_reset_peaks(gpumem_pool* pool) GPUMEM_NOEXCEPT;

/// Lets another device read and write all memory of the pool, also memory that the pool gets later. Does nothing in a
/// stack and for memory of chunks; for those see cuCtxEnablePeerAccess. A device that cannot reach the memory gives
/// GPUMEM_DRIVER_ERROR. Before this call, each call of a pool over pages with a stream of the device gives
/// GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_open_to(gpumem_pool* pool, int device) GPUMEM_NOEXCEPT;

/// Writes the ordinal of the pool's device.
gpumem_outcome gpumem_device(gpumem_pool* pool, int* device) GPUMEM_NOEXCEPT;

/// Writes 1 if the host can access the memory of the pool, as managed and pinned memory; otherwise 0. Such memory is
/// granted only when all its earlier uses are complete, so the host may touch it as soon as it is allocated.
gpumem_outcome gpumem_host_accessible(gpumem_pool* pool, int* accessible) GPUMEM_NOEXCEPT;

/// Writes the fields that both the library and the caller know. Gives GPUMEM_INVALID_ARGUMENT if `size` is too small
/// for even one field, and for a stack whose outermost resource keeps no statistics.
gpumem_outcome gpumem_read_statistics(gpumem_pool* pool, gpumem_statistics* statistics) GPUMEM_NOEXCEPT;

/// Writes the block, live or free, in which the pointer lies; its `base` is NULL if the pool does not own the pointer.
gpumem_outcome gpumem_find(gpumem_pool* pool, void const* pointer, gpumem_block* block) GPUMEM_NOEXCEPT;

/// Calls `visit` for each range of the pool's reserved memory, in the order of addresses. The ranges cover each region
/// without gaps. They are those of one moment, and no lock of the pool is held during the calls. A stack whose
/// outermost resource is not a pool gives GPUMEM_INVALID_ARGUMENT. Takes time in proportion to the number of blocks.
gpumem_outcome gpumem_visit_ranges(gpumem_pool* pool, void (*visit)(void* context, gpumem_range const* range),
                                   void* context) GPUMEM_NOEXCEPT;

/// Names a live block of the caller in snapshots and reports until it is freed; an empty label or NULL takes the name
/// away. The process keeps each different label, up to 65,535 of them, so use few. NULL as the pointer does nothing. A
/// pointer that is not live in the pool, and a stack whose resources name no blocks, give GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_set_label(gpumem_pool* pool, void const* pointer, char const* label) GPUMEM_NOEXCEPT;

/// Writes a file with all that the pool knows of its memory, in place of an older file: blocks, pages, thread caches,
/// requests that wait, and statistics. Other threads may use the pool meanwhile; the lock of one shard is held for at
/// most 1,000 blocks at a time. `options` may be NULL, or name the format:
///   format=json    a JSON object, which the guide's page "Take a snapshot" describes (the default)
///   format=pickle  the file of torch.cuda.memory._dump_snapshot, which PyTorch's _memory_viz.py reads
/// An unknown option, a file that cannot be written, and a stack whose outermost resource is not a pool give
/// GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_write_snapshot(gpumem_pool* pool, char const* path, char const* options) GPUMEM_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
