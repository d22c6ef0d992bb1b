// PyTorch's memory on one device: allocates and frees blocks, counts them, and keeps the streams recorded for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <gpumem/gpumem_torch.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "../support/guarded_mutex.hpp"
#include "pool.hpp"
#include "torch_mem_pools.hpp"

namespace gpumem::c {

/// The streams that PyTorch has recorded for each live block. They are used only when the block is freed. PyTorch
/// promises that the reuse of the block waits for all work that these streams were given before the free, including
/// work from after the recording. Any thread.
class recorded_streams {
public:
  struct stream {
    void* handle;
    int device;
    friend bool operator==(stream const&, stream const&) = default;
  };
  /// Adds a stream for a block; does nothing if the stream was added before. Throws std::bad_alloc.
  void add(void* block, stream user);

  /// Removes and returns the streams of the block. Costs one atomic load if no block has any streams: the free of a
  /// block is ordered after all recordings for it.
  std::vector<stream> take(void* block) noexcept {
    return blocks_.load(std::memory_order_acquire) == 0 ? std::vector<stream>{} : take_recorded(block);
  }

private:
  std::vector<stream> take_recorded(void* block) noexcept;
  support::guarded_mutex mutex_;
  std::unordered_map<void*, std::vector<stream>> streams_ GPUMEM_GUARDED_BY(mutex_);
  std::atomic<std::size_t> blocks_{0};
};

/// The requested bytes of each live block of a device whose request was rounded up. Without such blocks find() and
/// take() cost one atomic load. Any thread.
class rounded_blocks {
public:
  /// Records a block. Returns false if the host has no memory for the record.
  bool add(void const* block, std::size_t requested) noexcept {
    support::scoped_lock const lock{mutex_};
    try {
      requested_[block] = requested;
    } catch (std::bad_alloc const&) { return false; }
    blocks_.store(requested_.size(), std::memory_order_release);
    return true;
  }
  /// Returns the requested bytes; none if the request was not rounded up.
  std::optional<std::size_t> find(void const* block) noexcept { return any() ? visit(block, false) : std::nullopt; }
  /// Returns the requested bytes like find(), and removes the record.
  std::optional<std::size_t> take(void const* block) noexcept { return any() ? visit(block, true) : std::nullopt; }

private:
  // Returns whether there is a record. The free of a block is ordered after its allocation. So if the owner of a block
  // reads false here, the block has none.
  bool any() const noexcept { return blocks_.load(std::memory_order_acquire) != 0; }
  std::optional<std::size_t> visit(void const* block, bool forget) noexcept {
    support::scoped_lock const lock{mutex_};
    auto const found = requested_.find(block);
    if (found == requested_.end()) return std::nullopt;
    auto const requested = found->second;
    if (forget) requested_.erase(found);
    blocks_.store(requested_.size(), std::memory_order_release);
    return requested;
  }

  support::guarded_mutex mutex_;
  std::unordered_map<void const*, std::size_t> requested_ GPUMEM_GUARDED_BY(mutex_);
  std::atomic<std::size_t> blocks_{0};
};

/// Counts under one mutex, so that all numbers and peaks are exact, whichever threads allocate and free. Any thread.
class torch_counters {
public:
  /// `bytes` are those of the block: more than `requested` if a setting of PyTorch has rounded the request up.
  void count_allocation(std::size_t requested, std::size_t bytes) noexcept { count(requested, bytes, allocated); }
  void count_free(std::size_t requested, std::size_t bytes) noexcept { count(requested, bytes, freed); }

  /// Writes the numbers of blocks and bytes into `statistics`.
  void read(gpumem_torch_statistics& statistics) noexcept {
    support::scoped_spin_lock const held{mutex_};
    for (int part = 0; part < GPUMEM_TORCH_PARTS; ++part) {
      statistics.blocks[part] = counts_[part].blocks;
      statistics.bytes[part] = counts_[part].bytes;
      statistics.requested[part] = counts_[part].requested;
    }
  }
  void reset_peaks() noexcept {
    visit([](gpumem_torch_figure& one) { one.peak = one.current; });
  }
  void reset_totals() noexcept {
    visit([](gpumem_torch_figure& one) { one.allocated = one.freed = 0; });
  }

private:
  struct counts {
    gpumem_torch_figure blocks, bytes, requested;
  };
  using change = void (*)(gpumem_torch_figure& figure, std::uint64_t bytes) noexcept;

  static void allocated(gpumem_torch_figure& figure, std::uint64_t bytes) noexcept {
    figure.current += bytes;
    figure.allocated += bytes;
    figure.peak = std::max(figure.peak, figure.current);
  }
  static void freed(gpumem_torch_figure& figure, std::uint64_t bytes) noexcept {
    figure.current -= bytes;
    figure.freed += bytes;
  }
  [[gnu::always_inline]] inline void count(std::size_t requested, std::size_t bytes, change apply) noexcept {
    constexpr std::size_t step = 512;
    constexpr std::size_t max_small = std::size_t{1} << 20;
    auto const rounded = (bytes + step - 1) / step * step;
    auto const part = rounded <= max_small ? GPUMEM_TORCH_SMALL : GPUMEM_TORCH_LARGE;
    support::scoped_spin_lock const held{mutex_};
    for (auto const each : {GPUMEM_TORCH_ALL, part}) {
      apply(counts_[each].blocks, 1);
      apply(counts_[each].bytes, rounded);
      apply(counts_[each].requested, requested);
    }
  }
  template <class Visit> void visit(Visit visitor) noexcept {
    support::scoped_spin_lock const held{mutex_};
    for (auto& each : counts_) {
      visitor(each.blocks);
      visitor(each.bytes);
      visitor(each.requested);
    }
  }

  support::guarded_spin_mutex mutex_;
  counts counts_[GPUMEM_TORCH_PARTS] GPUMEM_GUARDED_BY(mutex_){};
};

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
  /// Limits the reserved memory to this many bytes, or to the limit that the options set if that is less; 0: no limit.
  /// The limit includes memory that PyTorch's pools get from functions of the caller. Throws std::invalid_argument if
  /// the outermost resource is not a pool.
  void set_limit(std::size_t bytes);
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
  void read_statistics(gpumem_torch_statistics& statistics);
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
  std::vector<waiting_free> waiting_ GPUMEM_GUARDED_BY(mutex_);
  std::atomic<void*> legacy_{nullptr}; // the timeline of the device's legacy stream
  support::guarded_mutex mutex_;
  // Statistics of the pool at the last reset of totals: the pool counts only from its construction.
  gpumem::statistics at_reset_ GPUMEM_GUARDED_BY(mutex_);
  // Peaks of figures for which the pool keeps none: the highest values seen when the statistics were read.
  std::uint64_t peak_pages_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_free_ranges_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_free_ GPUMEM_GUARDED_BY(mutex_) = 0;
};

} // namespace gpumem::c
