// The pool of the C ABI behind one interface, whichever resources it is made of.
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

/// The pool to which a C caller has a pointer. Its functions throw exceptions that outcome_of() makes outcomes of. Any
/// thread.
struct gpumem_pool {
  /// The block in which a pointer lies; as gpumem::block_info, which belongs to the module.
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
  /// Without `bytes` any size is right.
  virtual void free(cuda::stream_ref stream, void* pointer, std::optional<std::size_t> bytes) = 0;
  /// Returns memory for a stream that the caller has identified; null if there is none without a wait on the host.
  /// `key` is a gpumem::extend::stream_key that does not capture, and the request is not for too many bytes.
  virtual void* try_allocate_keyed(void const* key, std::size_t bytes, std::size_t alignment) noexcept = 0;
  /// Frees on the stream of the allocation; returns the requested bytes. Empty if the address is not that of a live
  /// block, and then does nothing.
  virtual std::optional<std::size_t> try_free(void* pointer) = 0;
  /// The live block that starts at an address, for its owner.
  struct owned_block {
    std::size_t bytes = 0;  ///< requested
    void* stream = nullptr; ///< for which it was allocated; null: the host
    /// The id of the capture in which the graph orders the block's uses by the calling thread; 0: none
    unsigned long long capture = 0;
  };
  virtual std::optional<owned_block> find_owned(void const* pointer) = 0;
  /// Waits until the time has passed; max(): without end.
  virtual void* acquire(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment,
                        std::chrono::nanoseconds longest) = 0;
  virtual void* allocate_sync(std::size_t bytes, std::size_t alignment) = 0;
  virtual void free_sync(void* pointer, std::size_t bytes) = 0;
  virtual void record_use(void* pointer, cuda::stream_ref stream) = 0;
  /// Returns false if the time has passed.
  virtual bool synchronize(std::chrono::nanoseconds longest) = 0;
  virtual std::size_t trim(std::size_t keep) = 0;
  virtual void reserve(std::size_t bytes) = 0;
  virtual void set_limit(std::size_t bytes) = 0;
  virtual void reset_peaks() = 0;
  virtual void open_to(int device) = 0;
  virtual int device() = 0;
  virtual gpumem::statistics statistics() = 0;
  virtual found_block find(void const* pointer) = 0;
  /// Calls `visit` for all reserved memory by address.
  virtual void visit_ranges(std::function<void(gpumem_range const&)> const& visit) = 0;
  /// Makes exactly these blocks live, in graph memory. Others throw std::invalid_argument.
  virtual void restore(std::span<gpumem_range const> live) = 0;
  /// Returns a handle of the outermost resource.
  virtual gpumem::any_pool resource() = 0;

  std::atomic<std::size_t> references{1};
};

namespace gpumem::c {

/// Returns a pool over a device's virtual pages, or over chunks. Throws what the pool's constructor throws.
std::unique_ptr<gpumem_pool> make_plain_pool(int device, pool_options options);

/// Called after pages were mapped, and before they are unmapped. Does not throw.
using page_observer = std::function<void(void* address, std::size_t bytes, bool mapped)>;

/// Whether make_plain_pool draws pages.
bool draws_pages(int device, pool_options const& options);
/// The same over pages, of which the observer is told. Throws std::invalid_argument if it would not draw pages.
std::unique_ptr<gpumem_pool> make_observed_pool(int device, pool_options options, page_observer observer);

} // namespace gpumem::c
