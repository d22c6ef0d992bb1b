// The functions that PyTorch's CUDAPluggableAllocator calls, and those that configure them. There is one pool per
// device, made at the first allocation on it.
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

/// Gives the unused memory of all devices back, except of devices on which a captured graph lives. Waits up to a second
/// per device for work that uses the memory. For set_reset_fn.
void gpumem_torch_empty_cache(void) GPUMEM_NOEXCEPT;

#ifdef __cplusplus
/// For change_current_allocator. *Throws* if there is no memory.
void* gpumem_torch_allocate(size_t bytes, int device, struct CUstream_st* stream);

/// Promises more than gpumem_record_use, as PyTorch does: the block is not reused before the work is complete that the
/// stream has been given by the time of the free. Ignores pointers that are not gpumem's. *Throws*. For
/// set_record_stream_fn.
void gpumem_torch_record_stream(void* pointer, struct CUstream_st* stream);

/// Sets the most that the device's pool may reserve, as a fraction of the device's memory, more than 0 and at most 1.
/// The smaller of this and the option `limit` counts. *Throws* once the device has its pool. For
/// set_memory_fraction_fn.
void gpumem_torch_memory_fraction(double fraction, int device);

/// c10::cuda::MempoolId_t.
using gpumem_torch_pool_id = std::pair<unsigned long long, unsigned long long>;

/// From begin to release a captured graph may hold addresses of the device's memory, so gpumem_torch_empty_cache gives
/// none of it back. Capturing streams get no memory: a graph must use memory that was allocated before. That must stay
/// allocated, since free pages may move to where memory is missing. *Throw* for a device number out of range, and for
/// an end without a begin. For set_begin_allocate_to_pool, set_end_allocate_to_pool_fn, set_release_pool.
void gpumem_torch_begin_allocate_to_pool(int device, gpumem_torch_pool_id pool,
                                         std::function<bool(struct CUstream_st*)> filter);
void gpumem_torch_end_allocate_to_pool(int device, gpumem_torch_pool_id pool);
void gpumem_torch_release_pool(int device, gpumem_torch_pool_id pool);
#endif

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
