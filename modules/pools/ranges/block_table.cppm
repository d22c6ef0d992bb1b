// Blocks by the pointers that were given out.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_table;
import :block;
import :block_metadata;
import :hash;
import :std;

namespace gpumem::detail {

/// A hash from the address of every block that is not a part of free ranges to its record. Changed under the lock of
/// the pool that keeps it; whoever owns a granted block may look it up without: its entry does not move, and tables
/// that became too small are kept. Three quarters of it are empty at least, so that few searches look at a second
/// entry; of a large one half, since a second entry costs less than one beyond the caches.
///
/// An entry is half a word, the record's number below and eight bits of the hash above: sixteen of them share a cache
/// line, and rarely is a record looked at that is not the one.
export class block_table {
public:
  /// Of blocks that have these records.
  explicit block_table(block_metadata const& metadata);

  /// Makes sure that so many more can be inserted. Throws std::bad_alloc.
  inline void reserve(std::size_t count) {
    while (used_ + count > current_.load(std::memory_order_relaxed)->max_used) [[unlikely]]
      rebuild();
  }
  inline void insert(block& added) noexcept { used_ += insert_in(*current_.load(std::memory_order_relaxed), added); }
  inline void erase(block const& freed) noexcept {
    auto& in = *current_.load(std::memory_order_relaxed);
    in.entries[freed.table_slot].store(erased, std::memory_order_relaxed);
    if (in.entries[(freed.table_slot + 1) & in.mask].load(std::memory_order_relaxed) == never_used)
      reclaim(in, freed.table_slot);
  }

  /// The block that begins at the address and is not free, or null. Any thread that owns the block; under the lock,
  /// any.
  inline block* find(void const* pointer) const noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(pointer);
    auto const& in = *current_.load(std::memory_order_acquire);
    auto const hash = hash_of(address);
    for (auto i = in.slot_of(hash);; i = (i + 1) & in.mask) {
      auto const seen = in.entries[i].load(std::memory_order_acquire);
      if ((seen ^ fingerprint_of(hash)) <= number_mask && seen > erased) [[likely]] {
        auto& found = block_of(seen);
        if (found.base == address) [[likely]]
          return &found;
      }
      if (seen == never_used) return nullptr;
    }
  }

private:
  using entry = std::uint32_t;
  static constexpr entry never_used = 0;
  static constexpr entry erased = 1; // no block begins there
  static_assert(block_metadata::first_number > erased);
  static constexpr entry number_mask = (entry{1} << block_metadata::number_bits) - 1;
  static constexpr std::size_t smallest = 256;
  static constexpr std::size_t large = std::size_t{1} << 16;

  struct table {
    explicit table(std::size_t size);
    inline std::size_t slot_of(std::uint64_t hash) const noexcept { return hash >> shift; }
    std::size_t mask;
    std::size_t max_used; // entries in use or erased
    unsigned shift;
    std::unique_ptr<std::atomic<entry>[]> entries;
  };
  static inline std::uint64_t hash_of(std::uintptr_t address) noexcept { return fibonacci_hash(address / granule); }
  // Out of the middle of the hash, whose upper bits choose the slot.
  static inline entry fingerprint_of(std::uint64_t hash) noexcept { return static_cast<entry>(hash) & ~number_mask; }
  inline block& block_of(entry one) const noexcept { return metadata_.at(one & number_mask); }
  // Whether into an entry that was never used.
  inline bool insert_in(table& in, block& added) noexcept {
    auto const hash = hash_of(added.base);
    auto i = in.slot_of(hash);
    auto seen = in.entries[i].load(std::memory_order_relaxed);
    while (seen > erased) {
      i = (i + 1) & in.mask;
      seen = in.entries[i].load(std::memory_order_relaxed);
    }
    in.entries[i].store(metadata_.number_of(added) | fingerprint_of(hash), std::memory_order_release);
    added.table_slot = static_cast<std::uint32_t>(i);
    return seen == never_used;
  }
  // No search passes an entry behind which none was ever used: it, and what was erased just before, is as good as
  // never used again.
  inline void reclaim(table& in, std::size_t i) noexcept {
    for (; in.entries[i].load(std::memory_order_relaxed) == erased; i = (i - 1) & in.mask) {
      in.entries[i].store(never_used, std::memory_order_relaxed);
      --used_;
    }
  }
  void rebuild();

  block_metadata const& metadata_;
  std::vector<std::unique_ptr<table>> tables_;
  std::atomic<table*> current_{nullptr};
  alignas(64) std::size_t used_ = 0; // or erased; not beside what other threads read
};

} // namespace gpumem::detail
