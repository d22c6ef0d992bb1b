// What PyTorch's CUDAPluggableAllocator calls, and what steers it: one pool a device, made at its first allocation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

#ifdef __cplusplus
#include <functional>
#include <utility>
extern "C" {
#endif
#pragma GCC visibility push(default)

/// Common to all functions: any thread. Stream NULL is the legacy default stream of the device, as in PyTorch,
/// whichever device is current. Functions marked *throws* are for PyTorch's C++ only, which has no other way to be
/// told: they throw what is a std::exception (std::bad_alloc for want of memory), and Python sees a RuntimeError with
/// the sentence of gpumem_last_error. For that the library takes libstdc++ and libgcc_s from the system, as PyTorch
/// does: linked with copies of its own, an exception would end the process.
struct CUstream_st; // what a CUstream or cudaStream_t points to

/// The options of all pools that are yet to be made, as gpumem_make_pool takes them; NULL: those of the environment
/// variable GPUMEM_TORCH_OPTIONS, which also serves when this is never called. Invalid once a device has its pool.
gpumem_outcome gpumem_torch_configure(char const* options) GPUMEM_NOEXCEPT;

/// The device's pool, which lives as long as the process and is not the caller's to release; NULL if none was made yet.
gpumem_outcome gpumem_torch_pool(int device, gpumem_pool** pool) GPUMEM_NOEXCEPT;

/// For torch.cuda.MemPool, which asks again after it has freed what it had cached: NULL says that there is no memory,
/// and gpumem_last_error why. 0 bytes are NULL too.
void* gpumem_torch_try_allocate(size_t bytes, int device, struct CUstream_st* stream) GPUMEM_NOEXCEPT;

/// Frees in the order of the stream and of all streams recorded for the block, as far as they have got by now. What
/// cannot be freed in order (a stream that is gone) is freed after all work of the device; the thread waits for it.
/// Misuse is printed to stderr, and then does nothing.
void gpumem_torch_free(void* pointer, size_t bytes, int device, struct CUstream_st* stream) GPUMEM_NOEXCEPT;

/// Gives the unused memory of all devices back, but for devices on which a captured graph lives; waits up to a second a
/// device for work that uses it. set_reset_fn.
void gpumem_torch_empty_cache(void) GPUMEM_NOEXCEPT;

#ifdef __cplusplus
/// For change_current_allocator: *throws* where there is no memory.
void* gpumem_torch_allocate(size_t bytes, int device, struct CUstream_st* stream);

/// PyTorch's promise, which is more than gpumem_record_use: the block is not reused before the work is complete that
/// the stream has been given by the time of the free. Pointers that are not gpumem's are ignored. *Throws*;
/// set_record_stream_fn.
void gpumem_torch_record_stream(void* pointer, struct CUstream_st* stream);

/// Most that the device's pool may reserve, as a fraction of the device's memory, 0 to 1; the smaller of this and the
/// option `limit` counts. *Throws* once the device has its pool; set_memory_fraction_fn.
void gpumem_torch_memory_fraction(double fraction, int device);

/// c10::cuda::MempoolId_t.
using gpumem_torch_pool_id = std::pair<unsigned long long, unsigned long long>;

/// From begin to release a captured graph may hold the addresses of the device's memory: nothing of it is given back by
/// gpumem_torch_empty_cache. Capturing streams are not served: a graph has to make do with what was allocated before,
/// and that has to stay allocated: free pages may move to where memory is missing. *Throws* for a device that cannot be
/// and an end without a begin; set_begin_allocate_to_pool, set_end_allocate_to_pool_fn, set_release_pool.
void gpumem_torch_begin_allocate_to_pool(int device, gpumem_torch_pool_id pool,
                                         std::function<bool(struct CUstream_st*)> filter);
void gpumem_torch_end_allocate_to_pool(int device, gpumem_torch_pool_id pool);
void gpumem_torch_release_pool(int device, gpumem_torch_pool_id pool);
#endif

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
