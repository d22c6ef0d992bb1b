// PyTorch's blocks whose requests were rounded up by a setting of PyTorch, so that they have more bytes than requested.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <new>
#include <optional>
#include <unordered_map>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// The requested bytes of each live block of a device whose request was rounded up. Without such blocks find() and
/// take() cost one atomic load. Any thread.
class rounded_blocks {
public:
  /// Records a block. Returns false if the host has no memory for the record.
  bool add(void const* block, std::size_t requested) noexcept {
    support::scoped_lock const held{mutex_};
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
    support::scoped_lock const held{mutex_};
    auto const found = requested_.find(block);
    if (found == requested_.end()) return std::nullopt;
    auto const requested = found->second;
    if (forget) requested_.erase(found);
    blocks_.store(requested_.size(), std::memory_order_release);
    return requested;
  }

  support::guarded_mutex mutex_;
  std::unordered_map<void const*, std::size_t> requested_ __attribute__((guarded_by(mutex_)));
  std::atomic<std::size_t> blocks_{0};
};

} // namespace gpumem::c
