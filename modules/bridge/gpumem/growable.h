// The C ABI of buffers that grow in place over pages of a pool.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/// The rules of gpumem.h for all functions and for streams hold here too. No call waits on the host for a stream.

// NOLINTBEGIN(modernize-use-using): C has no other way
/// Memory of a pool that grows at an address that never changes, while kernels use it and in graphs that were captured
/// before. It reserves addresses for the most that it can ever have, and borrows pages of the pool, which count in the
/// pool's limit and statistics. Reads and writes of pages that are not mapped fault.
typedef struct gpumem_growable gpumem_growable;

/// Address and sizes of a buffer that grows. The caller sets `size`, as in gpumem_statistics.
typedef struct gpumem_growable_sizes {
  size_t size;          ///< sizeof(gpumem_growable_sizes) of the caller
  void* data;           ///< first address
  uint64_t bytes;       ///< size of the buffer
  uint64_t mapped;      ///< bytes of pages that are not discarded; they may lie beyond `bytes`
  uint64_t reserved;    ///< bytes of reserved addresses: the most that the buffer can ever have
  uint64_t granularity; ///< unit of discards and of page sizes
} gpumem_growable_sizes;
// NOLINTEND(modernize-use-using)

/// Makes a buffer over the pages of a pool. The buffer keeps the pool's memory alive. Options are `name=value`,
/// separated by commas:
///   reserve=64GiB  addresses to reserve, which cost no memory; must be given
///   initial=1GiB   size at first. The call grows without a wait
///   discarded=on   the initial size is discarded at first: gpumem_growable_restore maps what is needed
///   page=32MiB     the size of pages, a multiple of 2 MiB, at most 512 MiB: a growth maps whole pages. Without it
///   pages
///                  have up to 512 MiB, and a growth maps some memory in advance. A page goes back once all of it is
///                  discarded. Pages of up to 32 MiB then serve the pool's other users, larger ones go to the device
///   name=cache     names the memory in snapshots and reports, and the buffer in texts of errors
/// A pool without pages, a stack of resources, and unknown, repeated or malformed options give
/// GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_growable_make(gpumem_pool* pool, void* stream, char const* options,
                                    gpumem_growable** buffer) GPUMEM_NOEXCEPT;

/// Makes the size at least `bytes`. New memory is valid in the order of the stream, which the caller orders after that
/// of the last call. If the pool lacks memory, the request waits in the pool's line for at most `nanoseconds`;
/// UINT64_MAX: without end. After that time the call returns GPUMEM_DEADLINE. More than the reserved addresses give
/// GPUMEM_TOO_LARGE, a stream that captures gives GPUMEM_CAPTURE_UNSUPPORTED. After a failure the buffer is as it was.
gpumem_outcome gpumem_growable_grow(gpumem_growable* buffer, void* stream, size_t bytes,
                                    uint64_t nanoseconds) GPUMEM_NOEXCEPT;

/// Makes the size `bytes`, which is at most the present size. The pages beyond it leave once the work enqueued on the
/// stream is complete. All work on other streams must be ordered before. With the present size it gives back what was
/// mapped in advance.
gpumem_outcome gpumem_growable_shrink(gpumem_growable* buffer, void* stream, size_t bytes) GPUMEM_NOEXCEPT;

/// Gives memory in the middle back, as gpumem_growable_shrink does; the size stays. Both numbers are multiples of the
/// granularity. Memory that is discarded already gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_growable_discard(gpumem_growable* buffer, void* stream, size_t offset,
                                       size_t bytes) GPUMEM_NOEXCEPT;

/// Maps discarded memory again; its contents are undefined. Waits as gpumem_growable_grow does. Memory that is not
/// discarded gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_growable_restore(gpumem_growable* buffer, void* stream, size_t offset, size_t bytes,
                                       uint64_t nanoseconds) GPUMEM_NOEXCEPT;

/// Writes the fields that both the library and the caller know. Gives GPUMEM_INVALID_ARGUMENT if `size` is too small
/// for even one field.
gpumem_outcome gpumem_growable_info(gpumem_growable* buffer, gpumem_growable_sizes* sizes) GPUMEM_NOEXCEPT;

/// Frees all memory in the order of the stream that was used last, and gives the addresses back once that work is
/// complete. No other call may use the buffer then. NULL does nothing.
gpumem_outcome gpumem_growable_free(gpumem_growable* buffer) GPUMEM_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
