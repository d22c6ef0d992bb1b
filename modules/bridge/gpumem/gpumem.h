// The C ABI: pools of GPU memory for C, for compilers without modules, and for every language that calls C functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define GPUMEM_NOEXCEPT noexcept
extern "C" {
#else
#define GPUMEM_NOEXCEPT
#endif
#pragma GCC visibility push(default)

/// Common to all functions: any thread may call any of them, also on one pool at once. A function that does not return
/// GPUMEM_GRANTED has done nothing, has written nothing through its out-pointers, and has left a sentence for
/// gpumem_last_error. A pool that is NULL and an out-pointer that is NULL are GPUMEM_INVALID_ARGUMENT. Sizes are bytes.
///
/// A child that was forked from a process in which gpumem had been used cannot use it. There gpumem_make_pool and the
/// functions that allocate return GPUMEM_DEVICE_LOST at once; all others do nothing and tell zeros. A device that was
/// reset, or lost by an error, stays lost to the process: calls for it return GPUMEM_DEVICE_LOST from then on.
///
/// A stream is a CUstream or cudaStream_t. NULL is a default stream of which only the caller's compiler knows the kind:
/// it counts as another stream for each calling thread. Who knows the kind passes one of the two names below. A default
/// stream belongs to the current device, which has to be the pool's.
#define GPUMEM_STREAM_LEGACY ((void*)1)     // one stream, whichever thread calls
#define GPUMEM_STREAM_PER_THREAD ((void*)2) // the calling thread's

/// Enough for every type; the alignment to pass where there is no wish.
#define GPUMEM_ALIGNMENT 256

/// major * 10000 + minor * 100 + patch, of this header.
#define GPUMEM_VERSION 100

// NOLINTBEGIN(modernize-use-using): C has no other way
/// What became of a call. The values are those of gpumem::outcome and stay as they are.
typedef enum gpumem_outcome {
  GPUMEM_GRANTED = 0,             ///< done
  GPUMEM_STOPPED = 1,             ///< a stop was requested before the grant was decided
  GPUMEM_DEADLINE = 2,            ///< the deadline passed while waiting
  GPUMEM_CLOSED = 3,              ///< the pool was closed
  GPUMEM_TOO_LARGE = 4,           ///< the request can never be met
  GPUMEM_EXHAUSTED = 5,           ///< there is no memory now
  GPUMEM_PREEMPTED = 6,           ///< rolled back in favour of older work
  GPUMEM_STALLED = 7,             ///< everyone who holds memory waits for memory
  GPUMEM_CAPTURE_UNSUPPORTED = 8, ///< the stream is capturing a graph
  GPUMEM_DEVICE_LOST = 9,         ///< the device reported a sticky error, or the process is exiting or was forked
  GPUMEM_INVALID_ARGUMENT = 10,   ///< NULL, an unknown option, a pointer that is not the pool's, a wrong size, …
  GPUMEM_DRIVER_ERROR = 11        ///< another error of the driver, or no driver
} gpumem_outcome;

/// A pool over the memory of one device, in virtual pages where the device has them: best fit, coalescing, reuse across
/// streams in proven order.
typedef struct gpumem_pool gpumem_pool;

/// Statistics of a pool: bytes and counts since it was made. The caller writes `size`; newer versions add fields at the
/// end, and a caller that was compiled with fewer gets those that it knows.
typedef struct gpumem_statistics {
  size_t size;           ///< sizeof(gpumem_statistics) of the caller
  uint64_t live;         ///< requested bytes not yet freed, in host order
  uint64_t allocated;    ///< the same, rounded up
  uint64_t reserved;     ///< drawn from the device
  uint64_t largest_free; ///< largest free range, whatever its order
  uint64_t limit;        ///< most that may be reserved; 0: none
  uint64_t peak_live;
  uint64_t peak_reserved;
  uint64_t allocations;
  uint64_t frees;
  uint64_t failures;
  uint64_t upstream_allocations; ///< times that memory was drawn from the device
  uint64_t upstream_frees;       ///< pages or chunks given back
  uint64_t coalesces;            ///< free neighbours joined
  uint64_t coalesces_refused;    ///< not joined, because more than four streams would have used the range
  uint64_t reuse_same_stream;    ///< the range was freed on the same stream
  uint64_t reuse_ordered;        ///< the stream was already ordered after its frees
  uint64_t reuse_completed;      ///< the host had seen its frees complete
  uint64_t reuse_waited;         ///< a wait was inserted
  uint64_t reuse_after_sync;     ///< the host waited at out-of-memory
  uint64_t free;                 ///< neither allocated nor cached
  uint64_t free_ranges;          ///< in so many pieces
  uint64_t free_in_use;          ///< of what is free: what the host has not yet seen the last use of
  uint64_t in_use_streams;       ///< whose uses those are
  uint64_t quarantined;          ///< of a hardened pool: freed and kept from reuse; allocated, not live
  uint64_t cached;               ///< freed, and in a thread cache
  uint64_t reuse_thread_cache;   ///< of reuse_same_stream: a thread had kept it
} gpumem_statistics;

/// What a pool knows of the memory in which a pointer lies; `size` as in gpumem_statistics.
typedef struct gpumem_block {
  size_t size;        ///< sizeof(gpumem_block) of the caller
  void* base;         ///< NULL: the pointer is not the pool's
  uint64_t bytes;     ///< requested; 0 of free memory
  uint64_t allocated; ///< rounded up; of free memory, the size of the range
  uint64_t stream;    ///< id of the stream that it was given to
  uint64_t live;      ///< 1, or 0 of free memory
} gpumem_block;
// NOLINTEND(modernize-use-using)

/// The version of the library, as GPUMEM_VERSION is the header's.
uint32_t gpumem_version(void) GPUMEM_NOEXCEPT;

/// The outcome's name, "granted"; of no outcome "unknown outcome". Lives for ever.
char const* gpumem_outcome_name(gpumem_outcome outcome) GPUMEM_NOEXCEPT;

/// What the calling thread's last call that failed has to say; "" if none did. Lives until the thread's next failure.
char const* gpumem_last_error(void) GPUMEM_NOEXCEPT;

/// Makes a pool over the memory of the device with that ordinal; its one reference is the caller's. Options are
/// `name=value`, separated by commas, NULL and "" are none:
///   limit=8GiB             most that may be reserved; 0: none. Pages are multiples of 2 MiB
///   initial_size=1GiB      reserved at once
///   release_threshold=2GiB reserved memory beyond this is given back when whole pages or chunks are free and complete,
///                          once there is an eighth more; without it nothing is given back but by gpumem_trim and at
///                          out-of-memory
///   pages=on               on (the default): draw virtual pages, where the device has them and the limit is not less
///                          than one; off: draw chunks of cudaMalloc. cudaIpcGetMemHandle takes only memory of chunks,
///                          and cudaDeviceEnablePeerAccess opens only chunks to other devices: a program that needs
///                          either must say pages=off
///   effort=0.05            share of the time, from 0 to 1, that a pool over virtual pages may spend on moving free
///                          pages to where memory is missing, before it makes others; 0: none; 1: no bound, so the
///                          pool reserves the least
///   cross_stream=wait      how far to go to reuse what another stream freed: ordered (only what the stream is ordered
///                          after), completed (also what the host has seen complete), wait (also behind a wait; this is
///                          the default)
///   name=training          in reports
///   hardened=on            find misuse: double frees anywhere, overwritten guards, writes after a free. What is found
///                          overwritten is printed to stderr, with the allocations and frees of the memory
///   guard=256, quarantine=64MiB, poison=64KiB, history=4096
///                          of a hardened pool: bytes around each block; freed bytes kept from reuse; most bytes of a
///                          block that are filled and looked at; allocations and frees remembered
/// A size is a number of bytes, or with a fraction and a unit: B, KiB, MiB, GiB, TiB, or kB, KB, MB, GB, TB. Unknown,
/// repeated, malformed and contradicting options are GPUMEM_INVALID_ARGUMENT, as is a device that does not exist.
gpumem_outcome gpumem_make_pool(int device, char const* options, gpumem_pool** pool) GPUMEM_NOEXCEPT;

/// One more reference.
gpumem_outcome gpumem_retain(gpumem_pool* pool) GPUMEM_NOEXCEPT;

/// One reference less. With the last one the pool gives its memory back once the host has seen all use complete; nobody
/// waits. Blocks that are still live stay valid and reserved, and nobody can free them any more.
gpumem_outcome gpumem_release(gpumem_pool* pool) GPUMEM_NOEXCEPT;

/// Memory usable by work that is enqueued on the stream from now on. 0 bytes give NULL. The alignment is any power of
/// two.
gpumem_outcome gpumem_allocate(gpumem_pool* pool, void* stream, size_t bytes, size_t alignment,
                               void** pointer) GPUMEM_NOEXCEPT;

/// Frees in the order of the stream: work enqueued on it before may still use the memory. The stream has to be ordered
/// after the one that the memory was given to, and after all other use but that which was recorded. Freeing NULL does
/// nothing. A pointer that is not live in the pool is GPUMEM_INVALID_ARGUMENT. A free on a capturing stream is done by
/// the pool's next call outside the capture. Once the process is exiting frees do nothing.
gpumem_outcome gpumem_free(gpumem_pool* pool, void* stream, void* pointer) GPUMEM_NOEXCEPT;

/// The same, with the size that was requested; another one is GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_free_sized(gpumem_pool* pool, void* stream, void* pointer, size_t bytes) GPUMEM_NOEXCEPT;

/// Memory that may be handed to any stream on return.
gpumem_outcome gpumem_allocate_sync(gpumem_pool* pool, size_t bytes, size_t alignment, void** pointer) GPUMEM_NOEXCEPT;

/// Frees memory of which the caller says that all use is over, as the host has seen.
gpumem_outcome gpumem_free_sync(gpumem_pool* pool, void* pointer, size_t bytes) GPUMEM_NOEXCEPT;

/// Declares that all use of the block on this stream is enqueued: its free need not be ordered after it, reuse will be.
/// At most three streams' uses are kept apart; a further stream first waits for one of them. Of NULL it does nothing.
gpumem_outcome gpumem_record_use(gpumem_pool* pool, void* pointer, void* stream) GPUMEM_NOEXCEPT;

/// Waits, at most so long, until the host has seen all work complete that keeps free memory from going back to the
/// device; GPUMEM_DEADLINE if that was not seen.
gpumem_outcome gpumem_synchronize(gpumem_pool* pool, uint64_t nanoseconds) GPUMEM_NOEXCEPT;

/// Gives unused memory beyond `keep` reserved bytes back to the device, whole pages or chunks of it and only what the
/// host has seen all use of complete, for which gpumem_synchronize waits; how much that was. Waits for nothing itself.
gpumem_outcome gpumem_trim(gpumem_pool* pool, size_t keep, size_t* given_back) GPUMEM_NOEXCEPT;

/// Writes the fields that both sides know; a `size` too small for any is GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_read_statistics(gpumem_pool* pool, gpumem_statistics* statistics) GPUMEM_NOEXCEPT;

/// The block, live or free, in which the pointer lies; one whose base is NULL if it is not the pool's.
gpumem_outcome gpumem_find(gpumem_pool* pool, void const* pointer, gpumem_block* block) GPUMEM_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
