// A list of frees by threads that found the lock of the block's shard taken.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:remote_frees;
import :block;
import :std;

namespace gpumem::detail {

/// The blocks of a shard that other threads have freed without its lock; the next holder of the lock completes the
/// frees. Compare the lists of thread-delayed frees of mimalloc (Leijen, Zorn, de Moura 2019).
export class remote_frees {
public:
  inline bool empty() const noexcept { return first_.load(std::memory_order_relaxed) == nullptr; }
  /// Adds a live block to the list. `use`: the block's last use. Any thread.
  inline void push(block& freed, stream_use const& use) noexcept {
    freed.uses.assign(use);
    freed.set_state(block_state::remote_freed);
    freed.next = first_.load(std::memory_order_relaxed);
    while (!first_.compare_exchange_weak(freed.next, &freed, std::memory_order_release, std::memory_order_relaxed)) {}
  }
  /// Removes and returns all blocks, linked by `next`, the newest first. The caller holds the lock of the shard.
  inline block* take_all() noexcept { return first_.exchange(nullptr, std::memory_order_acquire); }

private:
  std::atomic<block*> first_{nullptr};
};

} // namespace gpumem::detail
