// The limit of PyTorch's memory on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pool.hpp"

#include <cstddef>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// Limits the sum of two parts: the memory of the device's pool, and the memory that PyTorch's pools get from functions
/// of the caller ("drawn" memory). Drawn memory lowers the limit of the device's pool. Any thread.
class torch_limit {
public:
  /// `limit` is the present limit of the pool; 0: no limit.
  torch_limit(gpumem_pool& pool, std::size_t limit) noexcept : pool_{pool}, limit_{limit} {}

  /// Sets the limit; 0: no limit. Throws std::invalid_argument if the device's pool is a stack whose outermost resource
  /// is not a pool.
  void set(std::size_t limit);
  /// Counts memory that is about to be drawn. If needed, gives unused memory of the device's pool back to make room for
  /// it. Returns false, and counts nothing, if the limit would be exceeded.
  bool draw(std::size_t bytes) noexcept;
  void give_back(std::size_t bytes) noexcept;

  /// Returns the bytes that were drawn and not given back.
  std::size_t drawn() noexcept;
  /// Returns the limit of both parts together.
  std::size_t limit() noexcept;

private:
  std::size_t rest() const noexcept __attribute__((requires_capability(mutex_)));
  void limit_pool(std::size_t limit) noexcept;

  gpumem_pool& pool_;
  support::guarded_mutex mutex_;
  std::size_t limit_ __attribute__((guarded_by(mutex_)));
  std::size_t drawn_ __attribute__((guarded_by(mutex_))) = 0;
};

} // namespace gpumem::c
