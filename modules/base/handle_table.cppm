// The handles whose owners promise that they live.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:handle_table;
import :cuda;
import :std;
import :timeline;

namespace gpumem::detail {

/// Timelines by the handles of own and adopted streams, read without a lock. An entry once written stays; when an
/// adoption ends only its timeline is taken out, so a probe never stops early.
export class handle_table {
public:
  /// Null: neither own nor adopted. Any thread.
  inline timeline* find(CUstream handle) const noexcept {
    for (std::size_t i = slot_of(handle), probes = 0; probes < size; ++probes, i = (i + 1) % size) {
      auto const seen = slots_[i].handle.load(std::memory_order_acquire);
      if (seen == handle) return slots_[i].order.load(std::memory_order_acquire);
      if (!seen) return nullptr;
    }
    return nullptr;
  }

  /// False when full: such streams are identified like foreign ones. Under the registry's lock.
  inline bool put(CUstream handle, timeline* order) noexcept {
    for (std::size_t i = slot_of(handle), probes = 0; probes < size; ++probes, i = (i + 1) % size) {
      auto const seen = slots_[i].handle.load(std::memory_order_relaxed);
      if (seen && seen != handle) continue;
      slots_[i].order.store(order, std::memory_order_release);
      slots_[i].handle.store(handle, std::memory_order_release);
      return true;
    }
    return false;
  }

private:
  static constexpr std::size_t size = 4096;
  static inline std::size_t slot_of(CUstream handle) noexcept {
    return (std::bit_cast<std::uintptr_t>(handle) * 0x9e3779b97f4a7c15u) >> 52;
  }
  struct slot {
    std::atomic<CUstream> handle{nullptr};
    std::atomic<timeline*> order{nullptr};
  };
  std::array<slot, size> slots_{};
};

/// The process's.
export inline constinit handle_table known_handles;

} // namespace gpumem::detail
