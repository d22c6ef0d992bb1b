// Functions that PyTorch's allocators call, and functions that configure them. The allocators are
// CUDAPluggableAllocator and gpumem's own allocator class. There is one pool per device, made at the first allocation
// on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

#ifdef __cplusplus
#include <functional>
#include <utility>
extern "C" {
#endif
#pragma GCC visibility push(default)

/// For all functions: any thread may call them. Stream NULL is the legacy default stream of the device `device`,
/// whichever device is current, as in PyTorch. Functions marked *throws* are for PyTorch's C++ code, which learns of a
/// failure only by an exception. They throw a std::exception (std::bad_alloc if there is no memory). Python sees a
/// RuntimeError with the text of gpumem_last_error. For these exceptions the library uses the system's libstdc++ and
/// libgcc_s, as PyTorch does: with copies of its own, an exception would end the process. "For NAME." in a comment
/// means that PyTorch's function NAME, such as set_reset_fn of CUDAPluggableAllocator, takes the function.

struct CUstream_st; // the type to which a CUstream or cudaStream_t points

// NOLINTBEGIN(modernize-use-using): C has no other way
/// The four values that torch.cuda.memory_stats shows for one quantity.
typedef struct gpumem_torch_figure {
  uint64_t current;   ///< value now
  uint64_t peak;      ///< highest value since the last reset of peaks
  uint64_t allocated; ///< sum of all increases since the last reset of totals
  uint64_t freed;     ///< sum of all decreases since the last reset of totals
} gpumem_torch_figure;

/// Kinds of blocks that are counted separately.
enum {
  GPUMEM_TORCH_ALL,   ///< all blocks
  GPUMEM_TORCH_SMALL, ///< blocks of up to 1 MiB
  GPUMEM_TORCH_LARGE, ///< larger blocks
  GPUMEM_TORCH_PARTS  ///< number of the kinds above
};

/// Statistics of PyTorch's memory on one device. They are exact, except the peaks of those marked *read*: such a peak
/// is the largest value that gpumem_torch_read_statistics has written.
typedef struct gpumem_torch_statistics {
  size_t size;                                       ///< sizeof(gpumem_torch_statistics) of the caller
  gpumem_torch_figure blocks[GPUMEM_TORCH_PARTS];    ///< number of blocks
  gpumem_torch_figure bytes[GPUMEM_TORCH_PARTS];     ///< bytes of blocks, each rounded up to a multiple of 512
  gpumem_torch_figure requested[GPUMEM_TORCH_PARTS]; ///< requested bytes of blocks
  gpumem_torch_figure reserved;                      ///< bytes that the pool has from the device
  gpumem_torch_figure pages;                         ///< number of pages or chunks from the device; *read*
  gpumem_torch_figure free;                          ///< reserved bytes in no block; only current and peak; *read*
  gpumem_torch_figure free_ranges;                   ///< number of free ranges; only current and peak; *read*
  uint64_t largest_free;                             ///< bytes of the largest free range
  uint64_t limit;                                    ///< most bytes that may be reserved; 0: no limit
} gpumem_torch_statistics;
/// A block of PyTorch. The caller sets `size`.
typedef struct gpumem_torch_block {
  size_t size;                ///< sizeof(gpumem_torch_block) of the caller
  int64_t device;             ///< ordinal; -1: no live block starts at the address
  uint64_t bytes;             ///< requested bytes
  uint64_t pool[2];           ///< id of PyTorch's memory pool that has the block; 0, 0: none
  struct CUstream_st* stream; ///< stream of the allocation; NULL: the legacy stream, or no stream
} gpumem_torch_block;
// NOLINTEND(modernize-use-using)

/// Sets the options of all pools that are made later, as gpumem_make_pool takes them. NULL means the options in the
/// environment variable GPUMEM_TORCH_OPTIONS; they also apply if this function is never called. Returns
/// GPUMEM_INVALID_ARGUMENT once any device has its pool.
gpumem_outcome gpumem_torch_configure(char const* options) GPUMEM_NOEXCEPT;

/// Writes the device's pool; NULL if none was made yet. The pool lives as long as the process and must not be released.
gpumem_outcome gpumem_torch_pool(int device, gpumem_pool** pool) GPUMEM_NOEXCEPT;

/// Makes PyTorch use this pool for the device from now on. The options of gpumem_torch_configure do not apply to it.
/// The smaller of its limit and a memory fraction that was set before applies. The library keeps a reference as long as
/// the process lives. Returns GPUMEM_INVALID_ARGUMENT once the device has its pool, and for a pool of another device.
/// Returns it also if a fraction was set and the limit of the stack cannot change.
gpumem_outcome gpumem_torch_share_pool(int device, gpumem_pool* pool) GPUMEM_NOEXCEPT;

/// Allocates for torch.cuda.MemPool. If there is no memory, returns NULL, and gpumem_last_error gives the reason;
/// MemPool then frees its cached memory and asks again. Also returns NULL for 0 bytes.
void* gpumem_torch_try_allocate(size_t bytes, int device, struct CUstream_st* stream) GPUMEM_NOEXCEPT;

/// Frees after all work given so far to `stream` and to each stream that gpumem_torch_record_block_stream declared for
/// the block. If that order cannot be enqueued, the calling thread waits for the work and then frees. For a misuse, or
/// if that wait fails, prints a text to stderr and does not free.
void gpumem_torch_free(void* pointer, size_t bytes, int device, struct CUstream_st* stream) GPUMEM_NOEXCEPT;

/// Promises by the caller of gpumem_torch_allocate_block and gpumem_torch_record_block_use, which save driver calls.
/// Their values can be added.
enum {
  GPUMEM_TORCH_STREAM_LIVES = 1,  ///< the stream lives as long as the process
  GPUMEM_TORCH_DEVICE_CURRENT = 2 ///< the device is the current device of the calling thread
};

/// Allocates for gpumem's allocator class in PyTorch, like gpumem_torch_try_allocate, and writes the pointer.
gpumem_outcome gpumem_torch_allocate_block(size_t bytes, int device, struct CUstream_st* stream, int promises,
                                           void** pointer) GPUMEM_NOEXCEPT;
/// Allocates `room` bytes for a request of `bytes`, as PyTorch's setting roundup_power2_divisions demands. The
/// statistics count `room` as the bytes of the block. gpumem_torch_describe_block and gpumem_torch_visit_ranges show
/// `bytes`.
gpumem_outcome gpumem_torch_allocate_rounded_block(size_t bytes, size_t room, int device, struct CUstream_st* stream,
                                                   int promises, void** pointer) GPUMEM_NOEXCEPT;
/// Frees as gpumem_torch_free does, but needs only the pointer: the stream is the one for which the block was
/// allocated. That stream must still live. `bytes`, if not NULL, gets the bytes of the block. A pointer that is no live
/// block of a device's pool gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_torch_free_block(void* pointer, size_t* bytes) GPUMEM_NOEXCEPT;

/// Declares that `stream` uses the block. The block is reused only after all work that the stream is given before the
/// free. PyTorch promises this; gpumem_record_use only covers work up to its own call. Ignores pointers that are not
/// gpumem's, and the block's own stream. `device` is that of the stream; -1: that of the block.
gpumem_outcome gpumem_torch_record_block_stream(void* pointer, struct CUstream_st* stream, int device) GPUMEM_NOEXCEPT;
/// Does what gpumem_torch_record_block_stream does. With the promise GPUMEM_TORCH_STREAM_LIVES, neither this call nor
/// later calls ask the driver which stream the handle is.
gpumem_outcome gpumem_torch_record_block_use(void* pointer, struct CUstream_st* stream, int device,
                                             int promises) GPUMEM_NOEXCEPT;

/// Lets `device` read and write all memory of the pool of device `accessed`, also memory that the pool gets later.
gpumem_outcome gpumem_torch_open_to(int device, int accessed) GPUMEM_NOEXCEPT;

/// Limits PyTorch's memory to a fraction of the device's memory, from 0 to 1; 1: no limit. The memory of the device's
/// pool counts, and so does memory that PyTorch's memory pools get from functions of the caller. The smaller of this
/// limit and the option `limit` applies. Gives GPUMEM_INVALID_ARGUMENT if the device already has its pool, and that is
/// a stack of resources whose outermost resource is not a pool.
gpumem_outcome gpumem_torch_set_memory_fraction(double fraction, int device) GPUMEM_NOEXCEPT;

/// Describes the block that starts at the address: writes the fields of `block` that both the library and the caller
/// know. Only the owner of the block may rely on the result; otherwise another thread may free the block meanwhile.
gpumem_outcome gpumem_torch_describe_block(void const* pointer, gpumem_torch_block* block) GPUMEM_NOEXCEPT;

/// The most characters of a name of gpumem_torch_share_block, with the NUL at its end.
enum { GPUMEM_TORCH_NAME_SIZE = 128 };
/// Lets other processes of the same user map the pages of the live block that holds the address. Writes the name by
/// which they open them, and the distance of the address from the start of the first page. The pages stay in place
/// until the block is freed. The name opens nothing after that, but processes that have opened it keep the pages. A
/// thread of this library sends the pages, through a socket in a folder of the user: `gpumem` in XDG_RUNTIME_DIR,
/// otherwise /tmp/gpumem-UID. Gives GPUMEM_INVALID_ARGUMENT for memory that does not lie in pages.
gpumem_outcome gpumem_torch_share_block(void const* pointer, char name[GPUMEM_TORCH_NAME_SIZE],
                                        size_t* offset) GPUMEM_NOEXCEPT;
/// Maps the pages of a block that another process has shared. Writes the address of the first page, which the device
/// may read and write. Waits for the other process, at most 10 s for each of its messages. If it has ended, or has
/// freed the block, gives GPUMEM_DRIVER_ERROR.
gpumem_outcome gpumem_torch_open_shared(char const* name, int device, void** base) GPUMEM_NOEXCEPT;
/// Unmaps memory that gpumem_torch_open_shared has mapped. Waits on the host for all work of the device, which ends no
/// capture. If the device has no memory left, on which the wait depends, the memory can stay mapped: the call then
/// gives GPUMEM_EXHAUSTED, and a later call may succeed.
gpumem_outcome gpumem_torch_close_shared(void* base) GPUMEM_NOEXCEPT;

/// Sets a function that pools over pages call, on all devices: with `mapped` 1 after the bytes at the address were
/// mapped, with 0 before they are unmapped. NULL ends the calls. Pools over chunks, and stacks of resources, do not
/// call it. The calling thread may hold a lock of gpumem, so the function must not call gpumem.
void gpumem_torch_observe_pages(void (*changed)(int device, void* address, size_t bytes, int mapped)) GPUMEM_NOEXCEPT;

/// Calls `visit` for each range of PyTorch's reserved memory on the device, in the order of addresses. `first` and
/// `second` are the id of PyTorch's memory pool that has the range; 0, 0: none. The function must not allocate or free
/// memory of the device.
gpumem_outcome gpumem_torch_visit_ranges(int device,
                                         void (*visit)(void* context, gpumem_range const* range,
                                                       unsigned long long first, unsigned long long second),
                                         void* context) GPUMEM_NOEXCEPT;

/// Writes the fields of `statistics` that both the library and the caller know. They are 0 before the device's first
/// allocation.
gpumem_outcome gpumem_torch_read_statistics(int device, gpumem_torch_statistics* statistics) GPUMEM_NOEXCEPT;

/// Makes the peaks of the statistics begin anew.
gpumem_outcome gpumem_torch_reset_peaks(int device) GPUMEM_NOEXCEPT;
/// Makes the totals of the statistics begin anew.
gpumem_outcome gpumem_torch_reset_totals(int device) GPUMEM_NOEXCEPT;

/// For set_reset_fn. Gives the unused memory of all devices back. Destroys PyTorch's memory pools that have no blocks
/// and no uses (see gpumem_torch_retain_pool). Skips a device on which any of PyTorch's memory pools serves
/// allocations, since a capture may have begun there. Waits up to a second per device, and per destroyed pool, for work
/// that uses the memory. If a pool of the device has memory of captured graphs, first waits for all work on the device.
void gpumem_torch_empty_cache(void) GPUMEM_NOEXCEPT;

#ifdef __cplusplus
/// For change_current_allocator. Allocates; *throws* if there is no memory.
void* gpumem_torch_allocate(size_t bytes, int device, struct CUstream_st* stream);

/// For set_record_stream_fn. Calls gpumem_torch_record_block_stream. *Throws*.
void gpumem_torch_record_stream(void* pointer, struct CUstream_st* stream);

/// For set_memory_fraction_fn. Calls gpumem_torch_set_memory_fraction. *Throws*.
void gpumem_torch_memory_fraction(double fraction, int device);

/// The id of a memory pool of PyTorch, as c10::cuda::MempoolId_t.
using gpumem_torch_pool_id = std::pair<unsigned long long, unsigned long long>;

/// PyTorch's memory pools, by id: those of torch.cuda.MemPool and of captured graphs. A pool counts its uses: each
/// gpumem_torch_begin_allocate_to_pool and each gpumem_torch_retain_pool adds one, and gpumem_torch_release_pool
/// removes one. The first use makes the pool. A pool without uses ends when its blocks are freed and
/// gpumem_torch_empty_cache or gpumem_torch_empty_pool is called. A pool's memory comes from the device's pool, in
/// chunks of 2 MiB or of a request's size.
///
/// From begin to end, the pool serves the allocations on streams for which the filter returns true. If several pools
/// could, the pool that began last serves. Memory that is allocated on a capturing stream belongs to the graph as long
/// as the pool exists: see gpumem::graph_resource. The end does not remove the use that the begin has added. Begin and
/// end *throw* for a device number out of range, for a second begin of a pool without an end, and for an end without a
/// begin. For set_begin_allocate_to_pool, set_end_allocate_to_pool_fn, set_release_pool.
void gpumem_torch_begin_allocate_to_pool(int device, gpumem_torch_pool_id pool,
                                         std::function<bool(struct CUstream_st*)> filter);
/// Ends the service that gpumem_torch_begin_allocate_to_pool began.
void gpumem_torch_end_allocate_to_pool(int device, gpumem_torch_pool_id pool);
/// Removes a use of the pool; does nothing if there is none.
void gpumem_torch_release_pool(int device, gpumem_torch_pool_id pool) GPUMEM_NOEXCEPT;

/// Adds a use of the pool. `segments` are the functions from which a new pool gets its memory; NULL: from the device's
/// pool. The functions are copied. Their `free` must not return before the memory is unused: when it has returned,
/// the limit does not count the memory any more.
gpumem_outcome gpumem_torch_retain_pool(int device, gpumem_torch_pool_id pool,
                                        gpumem_callbacks const* segments) GPUMEM_NOEXCEPT;
/// Writes the pool's number of uses. A pool that does not exist gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_torch_pool_use_count(int device, gpumem_torch_pool_id pool, int* count) GPUMEM_NOEXCEPT;
/// Sets by `use` (1 or 0) whether the pool also serves requests that find no memory elsewhere. The pool then can also
/// grow for these requests.
gpumem_outcome gpumem_torch_use_pool_on_out_of_memory(int device, gpumem_torch_pool_id pool, int use) GPUMEM_NOEXCEPT;
/// Makes each block of the pool one allocation of the functions `segments` (see gpumem_torch_retain_pool), or without
/// them one block of the device's pool. Memory for captures is split into blocks nevertheless. Gives
/// GPUMEM_INVALID_ARGUMENT after the pool's first allocation, and for a pool that does not exist.
gpumem_outcome gpumem_torch_set_pool_unsplit(int device, gpumem_torch_pool_id pool) GPUMEM_NOEXCEPT;
/// Ends the pool if it has no use and no block.
gpumem_outcome gpumem_torch_empty_pool(int device, gpumem_torch_pool_id pool) GPUMEM_NOEXCEPT;
/// Restores the memory that the pool keeps for graphs: then the `count` ranges in the array `live` are live there, and
/// no others. An earlier gpumem_torch_visit_ranges has passed them to its `visit`. `changed` is called with each range
/// that was live before (`now` is 0), then with each that is live now (1). `changed` must not allocate or free memory
/// of the device. See gpumem::graph_resource::restore.
gpumem_outcome gpumem_torch_restore_pool(int device, gpumem_torch_pool_id pool, gpumem_range const* live, size_t count,
                                         void (*changed)(void* context, gpumem_range const* range, int now),
                                         void* context) GPUMEM_NOEXCEPT;
#endif

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
