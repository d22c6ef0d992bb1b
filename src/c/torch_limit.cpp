// Enforces the limit of PyTorch's memory on one device: the memory of the device's pool, and the memory that functions
// of the caller give (drawn memory).
// SPDX-License-Identifier: Apache-2.0
#include "torch_limit.hpp"

#include <algorithm>

#include "failure.hpp"

namespace gpumem::c {

std::size_t torch_limit::rest() const noexcept {
  if (limit_ == 0) return 0;
  return std::max(limit_ - std::min(drawn_, limit_), std::size_t{GPUMEM_ALIGNMENT}); // smallest valid limit
}

void torch_limit::set(std::size_t limit) {
  support::scoped_lock const held{mutex_};
  auto const before = limit_;
  limit_ = limit;
  try {
    pool_.set_limit(rest());
  } catch (...) {
    limit_ = before;
    throw;
  }
}

// Sets the limit of the device's pool. Ignores a failure: if the device has a stack of resources instead of a pool, its
// limit cannot change.
void torch_limit::limit_pool(std::size_t limit) noexcept {
  outcome_of([&] { pool_.set_limit(limit); });
}

// Lowers the limit of the device's pool before it reads the pool's reserved bytes, so that the pool cannot grow
// meanwhile.
bool torch_limit::draw(std::size_t bytes) noexcept {
  support::scoped_lock const held{mutex_};
  drawn_ += bytes;
  if (limit_ == 0) return true;
  bool fits = drawn_ <= limit_;
  if (fits) {
    limit_pool(rest());
    auto const room = limit_ - drawn_;
    outcome_of([&] {
      if (pool_.statistics().reserved > room) pool_.trim(room);
      fits = pool_.statistics().reserved <= room;
    });
  }
  if (fits) return true;
  drawn_ -= bytes;
  limit_pool(rest());
  return false;
}

void torch_limit::give_back(std::size_t bytes) noexcept {
  support::scoped_lock const held{mutex_};
  drawn_ -= bytes;
  if (limit_ > 0) limit_pool(rest());
}

std::size_t torch_limit::drawn() noexcept {
  support::scoped_lock const held{mutex_};
  return drawn_;
}

std::size_t torch_limit::limit() noexcept {
  support::scoped_lock const held{mutex_};
  return limit_;
}

} // namespace gpumem::c
