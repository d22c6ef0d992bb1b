// Counts the blocks of PyTorch on one device, as torch.cuda.memory_stats shows them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem_torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// Counts under one mutex, so that all numbers and peaks are exact, whichever threads allocate and free. Any thread.
class torch_counters {
public:
  /// `bytes` are those of the block: more than `requested` if a setting of PyTorch has rounded the request up.
  void count_allocation(std::size_t requested, std::size_t bytes) noexcept { count(requested, bytes, allocated); }
  void count_free(std::size_t requested, std::size_t bytes) noexcept { count(requested, bytes, freed); }

  /// Writes the numbers of blocks and bytes into `into`.
  void read(gpumem_torch_statistics& into) noexcept {
    support::scoped_spin_lock const held{mutex_};
    for (int part = 0; part < GPUMEM_TORCH_PARTS; ++part) {
      into.blocks[part] = counts_[part].blocks;
      into.bytes[part] = counts_[part].bytes;
      into.requested[part] = counts_[part].requested;
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
  using change = void (*)(gpumem_torch_figure& one, std::uint64_t by) noexcept;

  static void allocated(gpumem_torch_figure& one, std::uint64_t by) noexcept {
    one.current += by;
    one.allocated += by;
    one.peak = std::max(one.peak, one.current);
  }
  static void freed(gpumem_torch_figure& one, std::uint64_t by) noexcept {
    one.current -= by;
    one.freed += by;
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
  counts counts_[GPUMEM_TORCH_PARTS] __attribute__((guarded_by(mutex_))){};
};

} // namespace gpumem::c
