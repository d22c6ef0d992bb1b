// The C ABI of graph memory: memory of a pool that captured CUDA graphs use at each launch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/// The rules of gpumem.h for all functions and for streams hold here too. A pool refuses requests on a stream that
/// captures, unless a capture scope is open. Then it serves them from graph memory, and gpumem_allocate, gpumem_free
/// and all other calls for blocks are those of gpumem.h. A block's memory stays or comes back as follows:
///   allocated in a capture, freed in it
///       The memory serves later requests of that capture, and of later captures with the same graph memory. Within a
///       capture, another stream gets it only if the graph orders its next work after all uses. In a later capture,
///       another stream gets it once the pool knows that the first capture has ended.
///   allocated in a capture, freed after it
///       The block is valid in all launches of its graph until it is freed. Then the memory serves later captures of
///       the stream that freed it, while launches of the first graph still write there.
///   allocated before, freed in a capture
///       The block belongs to no graph. The pool's next call outside the capture completes the free, so the graph must
///       not use the block.
/// No two graphs of one graph memory may run at the same time, since they share addresses. A launch may overwrite what
/// other graphs of the memory and earlier launches have left there, also in blocks that are not freed. If no graph,
/// stream or host reads such data after that launch, the graphs may be launched in any order. Otherwise they are
/// launched in the order of their captures, and the data is read before the first of them is launched again.
///
/// Requests in a capture never wait: without memory they are exhausted, in gpumem_acquire too. While a thread allocates
/// in a capture, no other thread may add work to that capture.

// NOLINTBEGIN(modernize-use-using): C has no other way
/// Memory for the graphs of one or several captures. It comes from a pool in chunks of 2 MiB or of a request's size.
/// The pool's limit and statistics count each chunk as one live block.
typedef struct gpumem_graph_memory gpumem_graph_memory;

/// A time in which a pool serves a capturing stream from graph memory.
typedef struct gpumem_capture_scope gpumem_capture_scope;
// NOLINTEND(modernize-use-using)

/// Makes graph memory over a pool, without a chunk yet. It keeps the pool's memory alive, but blocks can be freed only
/// as long as the pool has a reference. A stack whose outermost resource is not a pool gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_graph_memory_make(gpumem_pool* pool, gpumem_graph_memory** memory) GPUMEM_NOEXCEPT;

/// Opens a capture scope. Until it is closed, the pool of the memory serves requests on the stream from the memory
/// whenever the stream captures. It serves streams that joined the capture through events in the same way. The scope
/// may be opened before or after the capture begins. The stream must live until the scope is closed. While any scope is
/// open in the process, each allocation and free on any stream asks the driver whether the stream captures. So close
/// the scope when the capture has ended. Memory that was freed on the stream before the scope was opened, such as that
/// of a first run, serves the capture once all uses are complete. So open the scope after that run, then synchronize
/// the stream, then begin the capture. A second scope of the pool on one stream, GPUMEM_STREAM_LEGACY and NULL give
/// GPUMEM_INVALID_ARGUMENT.
gpumem_outcome gpumem_graph_memory_capture(gpumem_graph_memory* memory, void* stream,
                                           gpumem_capture_scope** scope) GPUMEM_NOEXCEPT;

/// Closes the scope. Requests on a stream that still captures are refused from then on. NULL does nothing.
gpumem_outcome gpumem_capture_scope_end(gpumem_capture_scope* scope) GPUMEM_NOEXCEPT;

/// Writes the bytes that the memory has from its pool.
gpumem_outcome gpumem_graph_memory_bytes(gpumem_graph_memory* memory, size_t* bytes) GPUMEM_NOEXCEPT;

/// Gives the memory back to its pool. The caller has waited for all launches of its graphs, and launches none of them
/// again. An open scope, and blocks that are not freed yet, keep all of the memory until they end. NULL does nothing.
gpumem_outcome gpumem_graph_memory_free(gpumem_graph_memory* memory) GPUMEM_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
