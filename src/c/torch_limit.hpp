// The limit of PyTorch's memory on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pool.hpp"

#include <atomic>
#include <cstddef>

namespace gpumem::c {

/// Limits the sum of two parts: the memory of the device's pool, and the memory that PyTorch's pools get from functions
/// of the caller ("drawn" memory). The device's pool counts drawn memory toward its limit. Any thread.
class torch_limit {
public:
  /// `limit` is the present limit of the pool; 0: no limit.
  torch_limit(gpumem_pool& pool, std::size_t limit) noexcept : pool_{pool}, limit_{limit} {}

  /// Sets the limit; 0: no limit. Throws std::invalid_argument if the device's pool is a stack whose outermost resource
  /// is not a pool.
  void set(std::size_t limit);
  /// Counts memory that is about to be drawn. If needed, gives unused memory of the device's pool back to make room for
  /// it. Returns false, and counts nothing, if the limit would be exceeded, or if the calling thread now calls an
  /// observer of the device's pages.
  bool draw(std::size_t bytes) noexcept;
  void give_back(std::size_t bytes) noexcept;

  /// Returns the bytes that were drawn and not given back.
  std::size_t drawn() const noexcept { return drawn_.load(std::memory_order_relaxed); }
  /// Returns the limit of both parts together.
  std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }

private:
  gpumem_pool& pool_;
  std::atomic<std::size_t> limit_;
  std::atomic<std::size_t> drawn_{0};
};

} // namespace gpumem::c
