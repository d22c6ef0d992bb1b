// PyTorch's memory on one device: allocates and frees blocks, and counts them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pool.hpp"
#include "recorded_streams.hpp"
#include "rounded_blocks.hpp"
#include "torch_counters.hpp"
#include "torch_limit.hpp"
#include "torch_mem_pools.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace gpumem::c {

/// PyTorch's memory on one device. The object lives as long as the process. Any thread.
class torch_device {
public:
  /// Takes over the caller's reference to the pool. `limit`: the limit that the pool's options set; none: the pool's
  /// present limit.
  torch_device(int ordinal, gpumem_pool& pool, std::optional<std::size_t> limit = std::nullopt);

  int ordinal() const noexcept { return ordinal_; }
  gpumem_pool& pool() const noexcept { return pool_; }
  torch_counters& counters() noexcept { return counters_; }
  torch_mem_pools& mem_pools() noexcept { return mem_pools_; }
  /// Limits the reserved memory to a fraction of the device's memory, and at most to the limit that the options set.
  /// The limit includes memory that PyTorch's pools get from functions of the caller. Throws std::invalid_argument if
  /// the outermost resource is not a pool.
  void set_fraction(double fraction);
  /// Returns a fraction of the device's memory as a limit in bytes; 0 (no limit) for the whole memory.
  static std::size_t limit_of(double fraction, int ordinal);

  /// Allocates `room` bytes for a request of `bytes`, in the order of the stream. `promises`: facts that the caller
  /// promises, which save driver calls: a sum of GPUMEM_TORCH_STREAM_LIVES and GPUMEM_TORCH_DEVICE_CURRENT.
  void* allocate(std::size_t bytes, std::size_t room, void* stream, int promises);

  /// Frees a block in the order of its stream and of the `users`, the streams that were recorded for it. Returns the
  /// bytes of the block. Returns none, and leaves `users`, if the pointer is no live block. If one of the users
  /// captures, the block normally stays allocated until a later call outside the capture. It is freed at once if all
  /// users take part in the capture in which the block was allocated, and the calling thread works on that capture.
  std::optional<std::size_t> free(void* pointer, std::vector<recorded_streams::stream>& users);
  /// Returns the block, of the device's pool or of a pool of PyTorch, that holds the address.
  gpumem_pool::found_block find(void const* pointer);
  /// Describes the live block that starts at the address; none if there is none. Only the owner of the block may rely
  /// on the result.
  std::optional<gpumem_torch_block> describe(void const* pointer);
  /// Makes exactly the ranges `live` live in the graph memory of one of PyTorch's pools. Calls `changed` with each
  /// range that was live before (false) and with those that are live now (true).
  void restore(torch_mem_pools::id pool, std::span<gpumem_range const> live,
               std::function<void(gpumem_range const&, bool now)> const& changed);
  /// Gives unused memory back to the device. Gives nothing back while a pool of PyTorch serves allocations, since a
  /// capture may have begun.
  void trim();
  /// Calls `visitor` for each range of the reserved memory, in the order of addresses. The id is that of PyTorch's pool
  /// that has the range, or {0, 0}.
  void visit_ranges(std::function<void(torch_mem_pools::id, gpumem_range const&)> const& visitor);

  /// Writes all statistics.
  void read_statistics(gpumem_torch_statistics& into);
  void reset_peaks();
  void reset_totals();

private:
  struct waiting_free {
    void* pointer;
    std::vector<recorded_streams::stream> users;
  };
  void* try_allocate(std::size_t bytes, void* stream, int promises);
  void* allocate_from_pool(std::size_t bytes, void* stream, int promises);
  void* allocate_served(std::size_t bytes, void* stream, int promises);
  std::optional<std::size_t> try_free(void* pointer, std::vector<recorded_streams::stream>& users);
  std::optional<gpumem_pool::owned_block> find_owned(void const* pointer, torch_mem_pools::memory& owner);
  void* allocate_slow(std::size_t bytes, void* stream);
  void free_on(void* stream, void* pointer, torch_mem_pools::memory const& owner);
  void order_after(void* pointer, torch_mem_pools::memory const& owner,
                   std::vector<recorded_streams::stream> const& users);
  void free_waiting() noexcept;
  std::vector<waiting_free> take_waiting_of(torch_mem_pools::id pool);
  gpumem::statistics pool_statistics();

  int const ordinal_;
  gpumem_pool& pool_;
  std::size_t const limit_of_options_;
  torch_limit limit_;
  torch_counters counters_;
  torch_mem_pools mem_pools_;
  rounded_blocks rounded_;
  std::atomic<bool> any_waiting_{false};
  std::vector<waiting_free> waiting_ __attribute__((guarded_by(mutex_)));
  std::atomic<void*> legacy_{nullptr}; // the timeline of the device's legacy stream
  support::guarded_mutex mutex_;
  // Statistics of the pool at the last reset of totals: the pool counts only from its construction.
  gpumem::statistics at_reset_ __attribute__((guarded_by(mutex_)));
  // Peaks of figures for which the pool keeps none: the highest values seen when the statistics were read.
  std::uint64_t peak_pages_ __attribute__((guarded_by(mutex_))) = 0;
  std::uint64_t peak_free_ranges_ __attribute__((guarded_by(mutex_))) = 0;
  std::uint64_t peak_free_ __attribute__((guarded_by(mutex_))) = 0;
};

} // namespace gpumem::c
