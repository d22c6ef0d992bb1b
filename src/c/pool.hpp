// The interface of the C ABI's pools, whichever resources they are made of.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>
#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/statistics.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "snapshot.hpp"

struct gpumem_graph_memory;
struct gpumem_growable;

/// The pool to which a C caller has a pointer. Its functions throw exceptions; outcome_of() turns them into outcomes.
/// Any thread.
struct gpumem_pool {
  /// The block in which a pointer lies. It repeats gpumem::block_info, which only code that imports the module can use.
  struct found_block {
    void* base = nullptr;
    std::size_t bytes = 0;
    std::size_t allocated = 0;
    std::uint64_t stream = 0;
    bool live = false;
  };

  gpumem_pool() = default;
  gpumem_pool(gpumem_pool const&) = delete;
  gpumem_pool& operator=(gpumem_pool const&) = delete;
  virtual ~gpumem_pool() = default;

  virtual void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment) = 0;
  /// Frees in the order of the stream. Checks the size only if `bytes` is given.
  virtual void free(cuda::stream_ref stream, void* pointer, std::optional<std::size_t> bytes) = 0;
  /// Allocates for a stream; `key` points to its gpumem::extend::stream_key. Returns null if no memory is free without
  /// a wait on the host. The stream must not capture, and `bytes` must not be more than PTRDIFF_MAX / 2.
  virtual void* try_allocate_keyed(void const* key, std::size_t bytes, std::size_t alignment) noexcept = 0;
  /// Frees a block in the order of the stream of its allocation, and returns the requested bytes. If the address is not
  /// that of a live block, returns none and does nothing.
  virtual std::optional<std::size_t> try_free(void* pointer) = 0;
  /// The live block that starts at an address. Only the owner of the block may rely on it.
  struct owned_block {
    std::size_t bytes = 0;  ///< requested bytes
    void* stream = nullptr; ///< stream for which it was allocated; null: the host
    /// Id of the open capture in which the block was allocated, if the calling thread has made the newest request of
    /// that capture; otherwise 0. If it is not 0, the graph orders the uses of the block by this thread.
    unsigned long long capture = 0;
  };
  virtual std::optional<owned_block> find_owned(void const* pointer) = 0;
  /// Allocates; waits for memory for at most `longest`, or without end if that is max().
  virtual void* acquire(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment,
                        std::chrono::nanoseconds longest) = 0;
  virtual void* allocate_sync(std::size_t bytes, std::size_t alignment) = 0;
  virtual void free_sync(void* pointer, std::size_t bytes) = 0;
  virtual void record_use(void* pointer, cuda::stream_ref stream) = 0;
  /// Returns false if `longest` has passed.
  virtual bool synchronize(std::chrono::nanoseconds longest) = 0;
  virtual std::size_t trim(std::size_t keep) = 0;
  virtual void reserve(std::size_t bytes) = 0;
  virtual void set_limit(std::size_t bytes) = 0;
  /// Counts bytes of another source toward the limit; gives unused memory back to make room for them. Returns false,
  /// and counts nothing, if the limit would be exceeded. A stack has no limit that counts them.
  virtual bool add_outside(std::size_t bytes) = 0;
  virtual void remove_outside(std::size_t bytes) = 0;
  virtual void reset_peaks() = 0;
  virtual void open_to(int device) = 0;
  /// A page and a file descriptor by which another process can map it.
  struct exported_page {
    int descriptor = -1;
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  /// Exports the page that holds the address, and pins it until unpin(). The caller closes the descriptor. Only pools
  /// over pages that are exportable have such pages; others throw.
  virtual exported_page export_page(void const* pointer) = 0;
  virtual void unpin(void const* pointer, std::size_t bytes) noexcept = 0;
  virtual int device() = 0;
  virtual gpumem::statistics statistics() = 0;
  virtual found_block find(void const* pointer) = 0;
  /// Calls `visit` for each range of the reserved memory, in the order of addresses.
  virtual void visit_ranges(std::function<void(gpumem_range const&)> const& visit) = 0;
  /// Names a live block. Throws std::invalid_argument if there is none, or the resource names no blocks.
  virtual void set_label(void const* pointer, std::string_view label) = 0;
  /// Writes a snapshot. Throws std::invalid_argument if the file cannot be written, and for stacks.
  virtual void write_snapshot(gpumem::c::snapshot_file const& file) = 0;
  /// Makes a buffer that grows over the pool's pages; see make_growable(). Throws std::invalid_argument for stacks and
  /// for graph memory.
  virtual gpumem_growable* make_growable(cuda::stream_ref stream, std::string_view options) = 0;
  /// Makes graph memory over the pool. Throws std::invalid_argument for stacks and for graph memory.
  virtual gpumem_graph_memory* make_graph_memory() = 0;
  /// Makes exactly the blocks of `live` live, if this is graph memory. Other pools throw std::invalid_argument.
  virtual void restore(std::span<gpumem_range const> live) = 0;
  /// Returns a handle to the outermost resource.
  virtual gpumem::any_pool resource() = 0;

  std::atomic<std::size_t> references{1};
};

namespace gpumem::c {

/// Returns a pool over a device's virtual pages, or over chunks if draws_pages() is false. Throws what the constructor
/// of pool_resource throws.
std::unique_ptr<gpumem_pool> make_plain_pool(int device, pool_options options);

/// A function that is called after pages were mapped, and before they are unmapped. It must not throw.
using page_observer = std::function<void(void* address, std::size_t bytes, bool mapped)>;

/// Returns whether make_plain_pool() makes a pool over virtual pages.
bool draws_pages(int device, pool_options const& options);
/// Returns a pool over virtual pages, which calls the observer. Throws std::invalid_argument if draws_pages() is false.
std::unique_ptr<gpumem_pool> make_observed_pool(int device, pool_options options, page_observer observer);

} // namespace gpumem::c
