// Enforces the limit of PyTorch's memory on one device: the memory of the device's pool, and the memory that functions
// of the caller give (drawn memory).
// SPDX-License-Identifier: Apache-2.0
#include "torch_limit.hpp"

#include "failure.hpp"

namespace gpumem::c {

void torch_limit::set(std::size_t limit) {
  pool_.set_limit(limit);
  limit_.store(limit, std::memory_order_relaxed);
}

bool torch_limit::draw(std::size_t bytes) noexcept {
  bool fits = false;
  outcome_of([&] { fits = pool_.add_outside(bytes); });
  if (fits) drawn_.fetch_add(bytes, std::memory_order_relaxed);
  return fits;
}

void torch_limit::give_back(std::size_t bytes) noexcept {
  drawn_.fetch_sub(bytes, std::memory_order_relaxed);
  outcome_of([&] { pool_.remove_outside(bytes); });
}

} // namespace gpumem::c
