// The functions that PyTorch's allocators call, and those that configure them: CUDAPluggableAllocator, and gpumem's own
// class in place of PyTorch's. There is one pool per device, made at the first allocation on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

#ifdef __cplusplus
#include <functional>
#include <utility>
extern "C" {
#endif
#pragma GCC visibility push(default)

/// For all functions: any thread. Stream NULL is the legacy default stream of the device, as in PyTorch, whichever
/// device is current. Functions marked *throws* are for PyTorch's C++ only, which learns of a failure in no other way.
/// They throw a std::exception (std::bad_alloc if there is no memory), and Python sees a RuntimeError with the text of
/// gpumem_last_error. For that the library uses the system's libstdc++ and libgcc_s, as PyTorch does: if it were linked
/// with copies of its own, an exception would end the process.

struct CUstream_st; // what a CUstream or cudaStream_t points to

// NOLINTBEGIN(modernize-use-using): C has no other way
/// One line of torch.cuda.memory_stats.
typedef struct gpumem_torch_figure {
  uint64_t current;   ///< now
  uint64_t peak;      ///< since the last reset of peaks
  uint64_t allocated; ///< sum of all increases since the last reset of totals
  uint64_t freed;     ///< sum of all decreases since then
} gpumem_torch_figure;

/// The blocks that a figure counts.
enum {
  GPUMEM_TORCH_ALL,   ///< all blocks
  GPUMEM_TORCH_SMALL, ///< up to 1 MiB
  GPUMEM_TORCH_LARGE, ///< the others
  GPUMEM_TORCH_PARTS  ///< number of the kinds above
};

/// The memory of PyTorch on one device. The figures of blocks are exact. Those marked *read* are exact, but for their
/// peaks: these are the largest values that gpumem_torch_read_statistics has written.
typedef struct gpumem_torch_statistics {
  size_t size;                                       ///< sizeof(gpumem_torch_statistics) of the caller
  gpumem_torch_figure blocks[GPUMEM_TORCH_PARTS];    ///< number of blocks
  gpumem_torch_figure bytes[GPUMEM_TORCH_PARTS];     ///< requested, rounded up to multiples of 512 for each block
  gpumem_torch_figure requested[GPUMEM_TORCH_PARTS]; ///< requested
  gpumem_torch_figure reserved;                      ///< bytes got from the device
  gpumem_torch_figure pages;                         ///< pages or chunks got from the device; *read*
  gpumem_torch_figure free;                          ///< reserved bytes of no block; only current and peak; *read*
  gpumem_torch_figure free_ranges;                   ///< number of ranges of these; only current and peak; *read*
  uint64_t largest_free;                             ///< bytes of the largest of them
  uint64_t limit;                                    ///< most that may be reserved; 0: no limit
} gpumem_torch_statistics;
/// A block of PyTorch; `size` as above.
typedef struct gpumem_torch_block {
  size_t size;                ///< sizeof(gpumem_torch_block) of the caller
  int64_t device;             ///< -1: no live block starts at the address
  uint64_t bytes;             ///< requested
  uint64_t pool[2];           ///< id of PyTorch's pool; 0, 0: none
  struct CUstream_st* stream; ///< for which it was allocated; NULL: the legacy stream, or no stream
} gpumem_torch_block;
// NOLINTEND(modernize-use-using)

/// Sets the options of all pools that are made later, in the form of gpumem_make_pool. NULL: those of the environment
/// variable GPUMEM_TORCH_OPTIONS, which also count if this is never called. Returns GPUMEM_INVALID_ARGUMENT once any
/// device has its pool.
gpumem_outcome gpumem_torch_configure(char const* options) GPUMEM_NOEXCEPT;

/// Writes the device's pool, which lives as long as the process and must not be released; NULL if none was made yet.
gpumem_outcome gpumem_torch_pool(int device, gpumem_pool** pool) GPUMEM_NOEXCEPT;

/// Makes PyTorch use this pool for the device from now on; the options of gpumem_torch_configure do not count for it.
/// The library keeps a reference as long as the process lives. Returns GPUMEM_INVALID_ARGUMENT once the device has its
/// pool, and for a pool of another device.
gpumem_outcome gpumem_torch_share_pool(int device, gpumem_pool* pool) GPUMEM_NOEXCEPT;

/// For torch.cuda.MemPool, which asks again after it has freed its cached memory. Returns NULL if there is no memory,
/// and gpumem_last_error then gives the reason; also NULL for 0 bytes.
void* gpumem_torch_try_allocate(size_t bytes, int device, struct CUstream_st* stream) GPUMEM_NOEXCEPT;

/// Frees in the order of the stream and of all streams recorded for the block, after the work that they have been given
/// by now. If that order cannot be made, the calling thread waits for all work of these streams and then frees. Misuse,
/// or a failure of the wait, is printed to stderr; the block is then not freed.
void gpumem_torch_free(void* pointer, size_t bytes, int device, struct CUstream_st* stream) GPUMEM_NOEXCEPT;

/// Promises of the caller of gpumem_torch_allocate_block, which save driver calls; they are added.
enum {
  GPUMEM_TORCH_STREAM_LIVES = 1,  ///< the stream lives as long as the process
  GPUMEM_TORCH_DEVICE_CURRENT = 2 ///< the device is the calling thread's current one
};

/// Allocates for PyTorch's allocator class, as gpumem_torch_try_allocate.
gpumem_outcome gpumem_torch_allocate_block(size_t bytes, int device, struct CUstream_st* stream, int promises,
                                           void** pointer) GPUMEM_NOEXCEPT;
/// Allocates `room` bytes for a request of fewer, as PyTorch's setting roundup_power2_divisions asks for. The figures
/// count them as the bytes of the block; gpumem_torch_describe_block and the ranges show the requested bytes.
gpumem_outcome gpumem_torch_allocate_rounded_block(size_t bytes, size_t room, int device, struct CUstream_st* stream,
                                                   int promises, void** pointer) GPUMEM_NOEXCEPT;
/// Frees by the pointer alone, as gpumem_torch_free. The stream of the free is that of the allocation; it must still
/// live. `bytes`, if not NULL, gets the bytes of the block. A pointer that is no live block of a device's pool gives
/// GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_torch_free_block(void* pointer, size_t* bytes) GPUMEM_NOEXCEPT;

/// Promises more than gpumem_record_use, as PyTorch does: the block is not reused before the work is complete that the
/// stream has been given by the time of the free. Ignores pointers that are not gpumem's, and the block's own stream.
/// `device`: that of the stream; -1: that of the block.
gpumem_outcome gpumem_torch_record_block_stream(void* pointer, struct CUstream_st* stream, int device) GPUMEM_NOEXCEPT;

/// Lets a device read and write the memory that the pool of the device `accessed` has and gets.
gpumem_outcome gpumem_torch_open_to(int device, int accessed) GPUMEM_NOEXCEPT;

/// Sets the most that PyTorch may have, as a fraction of the device's memory, from 0 to 1, which means no limit. That
/// holds for the device's pool together with what pools of PyTorch draw from functions of the caller. The smaller of
/// this and the option `limit` counts. If the pool exists already, it must be the outermost resource of its stack.
gpumem_outcome gpumem_torch_set_memory_fraction(double fraction, int device) GPUMEM_NOEXCEPT;

/// Writes the fields that both sides know. Only the block's owner may rely on the result.
gpumem_outcome gpumem_torch_describe_block(void const* pointer, gpumem_torch_block* block) GPUMEM_NOEXCEPT;

/// Makes the function be told of the pages of all devices: `mapped` is 1 after the bytes at the address were mapped, 0
/// before they are unmapped. NULL ends that. Pools over chunks, and stacks, tell nothing. The function may be called
/// while a lock of gpumem is held, so it must not call gpumem.
void gpumem_torch_observe_pages(void (*changed)(int device, void* address, size_t bytes, int mapped)) GPUMEM_NOEXCEPT;

/// Calls `visit` for all reserved memory of PyTorch on the device, by address. `first` and `second` are the id of
/// PyTorch's pool that has the memory; 0, 0: none. The function must not allocate or free memory of the device.
gpumem_outcome gpumem_torch_visit_ranges(int device,
                                         void (*visit)(void* context, gpumem_range const* range,
                                                       unsigned long long first, unsigned long long second),
                                         void* context) GPUMEM_NOEXCEPT;

/// Writes the fields that both sides know; zeros before the device's first allocation.
gpumem_outcome gpumem_torch_read_statistics(int device, gpumem_torch_statistics* statistics) GPUMEM_NOEXCEPT;

/// Makes the peaks of the statistics count from now on.
gpumem_outcome gpumem_torch_reset_peaks(int device) GPUMEM_NOEXCEPT;
/// Makes the totals of the statistics count from now on.
gpumem_outcome gpumem_torch_reset_totals(int device) GPUMEM_NOEXCEPT;

/// Gives the unused memory of all devices back, and ends pools of PyTorch without uses and blocks. Skips devices on
/// which a pool serves allocations, since a capture may have begun. Waits up to a second per device for work that uses
/// the memory. For set_reset_fn.
void gpumem_torch_empty_cache(void) GPUMEM_NOEXCEPT;

#ifdef __cplusplus
/// For change_current_allocator. *Throws* if there is no memory.
void* gpumem_torch_allocate(size_t bytes, int device, struct CUstream_st* stream);

/// gpumem_torch_record_block_stream for set_record_stream_fn. *Throws*.
void gpumem_torch_record_stream(void* pointer, struct CUstream_st* stream);

/// gpumem_torch_set_memory_fraction for set_memory_fraction_fn. *Throws*.
void gpumem_torch_memory_fraction(double fraction, int device);

/// c10::cuda::MempoolId_t.
using gpumem_torch_pool_id = std::pair<unsigned long long, unsigned long long>;

/// The pools of PyTorch, by id: torch.cuda.MemPool, and those of captured graphs. The first use makes the pool; after
/// the last one it ends once its blocks are freed and gpumem_torch_empty_cache or gpumem_torch_empty_pool is called.
/// Its memory comes from the device's pool, in chunks of 2 MiB or of a request's size.
///
/// From begin to end the pool serves the allocations for whose stream the filter is true, the pool that began last
/// first. An allocation on a capturing stream gets memory that stays the graph's as long as the pool: see
/// gpumem::graph_resource. begin adds a use, end does not remove it. *Throw* for a device number out of range, for a
/// second begin of a pool without an end, and for an end without a begin. For set_begin_allocate_to_pool,
/// set_end_allocate_to_pool_fn, set_release_pool.
void gpumem_torch_begin_allocate_to_pool(int device, gpumem_torch_pool_id pool,
                                         std::function<bool(struct CUstream_st*)> filter);
/// Ends what gpumem_torch_begin_allocate_to_pool began.
void gpumem_torch_end_allocate_to_pool(int device, gpumem_torch_pool_id pool);
/// Removes a use; does nothing if there is none.
void gpumem_torch_release_pool(int device, gpumem_torch_pool_id pool) GPUMEM_NOEXCEPT;

/// Adds a use. `segments`: the functions from which a new pool draws its memory, NULL for the device's pool. They are
/// copied; their free must end when the memory is unused.
gpumem_outcome gpumem_torch_retain_pool(int device, gpumem_torch_pool_id pool,
                                        gpumem_callbacks const* segments) GPUMEM_NOEXCEPT;
/// Writes the number of uses. A pool that does not exist gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_torch_pool_use_count(int device, gpumem_torch_pool_id pool, int* count) GPUMEM_NOEXCEPT;
/// Lets requests that find no memory be served by the pool, which may grow for that; or not any more.
gpumem_outcome gpumem_torch_use_pool_on_out_of_memory(int device, gpumem_torch_pool_id pool, int use) GPUMEM_NOEXCEPT;
/// Makes each block of the pool one allocation of the functions `segments`, or one block of the device's pool. Captures
/// ignore that. Gives GPUMEM_INVALID_ARGUMENT after the pool's first allocation, and for a pool that does not exist.
gpumem_outcome gpumem_torch_set_pool_unsplit(int device, gpumem_torch_pool_id pool) GPUMEM_NOEXCEPT;
/// Ends the pool if it has no use and no block.
gpumem_outcome gpumem_torch_empty_pool(int device, gpumem_torch_pool_id pool) GPUMEM_NOEXCEPT;
/// Makes exactly these ranges, which gpumem_torch_visit_ranges has told earlier, live in the graph memory of the pool.
/// `changed` is called with each range that was live (`now` is 0), then with each that is live now (1); it must not
/// allocate or free memory of the device. See gpumem::graph_resource::restore.
gpumem_outcome gpumem_torch_restore_pool(int device, gpumem_torch_pool_id pool, gpumem_range const* live, size_t count,
                                         void (*changed)(void* context, gpumem_range const* range, int now),
                                         void* context) GPUMEM_NOEXCEPT;
#endif

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
