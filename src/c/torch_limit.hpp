// The most memory that PyTorch may have on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pool.hpp"

#include <cstddef>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// Holds for the device's pool together with the memory that pools of PyTorch draw from functions of the caller: what
/// these draw lowers the limit of the device's pool. Any thread.
class torch_limit {
public:
  /// `limit`: that of the pool; 0: none.
  torch_limit(gpumem_pool& pool, std::size_t limit) noexcept : pool_{pool}, limit_{limit} {}

  /// Throws std::invalid_argument if the outermost resource of the device is not a pool.
  void set(std::size_t limit);
  /// Counts memory that is about to be drawn, for which unused memory of the device's pool goes back. Returns false,
  /// and counts nothing, if it is more than the limit.
  bool draw(std::size_t bytes) noexcept;
  void give_back(std::size_t bytes) noexcept;

  /// Returns the bytes that are drawn and not given back.
  std::size_t drawn() noexcept;
  /// Returns the limit, of which the limit of the device's pool is a part while memory is drawn.
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
