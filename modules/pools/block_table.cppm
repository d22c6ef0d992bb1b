// Blocks by the pointers that were given out.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_table;
import :block;
import :std;

namespace gpumem::detail {

/// A hash from the address of every block that is not a part of free ranges to its record. Changed under the lock of
/// the pool that keeps it; whoever owns a granted block may look it up without: its entry does not move, and tables
/// that became too small are kept.
export class block_table {
public:
  block_table();

  /// Makes sure that so many more, a few, can be put. Throws std::bad_alloc.
  inline void reserve(std::size_t count) {
    if (2 * (used_ + count) > (current_.load(std::memory_order_relaxed)->mask + 1)) rebuild();
  }
  inline void put(block& granted) noexcept { used_ += put_in(*current_.load(std::memory_order_relaxed), granted); }
  inline void drop(block const& freed) noexcept {
    auto& in = *current_.load(std::memory_order_relaxed);
    auto i = in.slot_of(freed.base);
    while (in.entries[i].address.load(std::memory_order_relaxed) != freed.base) i = (i + 1) & in.mask;
    in.entries[i].address.store(dropped, std::memory_order_relaxed);
    if (in.entries[(i + 1) & in.mask].address.load(std::memory_order_relaxed) == never_used) clean(in, i);
  }

  /// The block that begins at the address and is not free, or null. Any thread that owns the block; under the lock,
  /// any.
  inline block* find(void const* pointer) const noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(pointer);
    auto const& in = *current_.load(std::memory_order_acquire);
    for (auto i = in.slot_of(address);; i = (i + 1) & in.mask) {
      auto const seen = in.entries[i].address.load(std::memory_order_acquire);
      if (seen == address) return in.entries[i].found.load(std::memory_order_relaxed);
      if (seen == never_used) return nullptr;
    }
  }

private:
  static constexpr std::uintptr_t never_used = 0;
  static constexpr std::uintptr_t dropped = 1; // no block begins there
  static constexpr std::size_t smallest = 256;

  struct entry {
    std::atomic<std::uintptr_t> address{never_used};
    std::atomic<block*> found{nullptr};
  };
  struct table {
    explicit table(std::size_t size);
    inline std::size_t slot_of(std::uintptr_t address) const noexcept {
      return ((address / granule) * 0x9e3779b97f4a7c15u) >> shift;
    }
    std::size_t mask;
    unsigned shift;
    std::unique_ptr<entry[]> entries;
  };
  // Whether into an entry that was never used.
  static inline bool put_in(table& in, block& granted) noexcept {
    auto i = in.slot_of(granted.base);
    auto seen = in.entries[i].address.load(std::memory_order_relaxed);
    while (seen > dropped) {
      i = (i + 1) & in.mask;
      seen = in.entries[i].address.load(std::memory_order_relaxed);
    }
    in.entries[i].found.store(&granted, std::memory_order_relaxed);
    in.entries[i].address.store(granted.base, std::memory_order_release);
    return seen == never_used;
  }
  // No search passes an entry behind which none was ever used: it, and what was dropped just before, is as good as
  // never used again.
  inline void clean(table& in, std::size_t i) noexcept {
    for (; in.entries[i].address.load(std::memory_order_relaxed) == dropped; i = (i - 1) & in.mask) {
      in.entries[i].address.store(never_used, std::memory_order_relaxed);
      --used_;
    }
  }
  void rebuild();

  std::vector<std::unique_ptr<table>> tables_;
  std::atomic<table*> current_{nullptr};
  std::size_t used_ = 0; // or dropped
};

} // namespace gpumem::detail
