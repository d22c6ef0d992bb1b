// The block table: finds by its address each block that is neither a free range nor a hole (unmapped addresses).
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_table;
import :block;
import :block_metadata;
import :hash;
import :std;

namespace gpumem::detail {

/// A hash table from the start of each block that is neither a free range nor a hole to the block's record. Changes
/// need the lock of the shard, the part of a pool to which the table belongs. The owner of a block may find it without
/// the lock: its entry does not move, and outgrown tables are kept. At least three quarters of the table are empty, so
/// that few searches read a second entry. A large table is at least half empty: a second entry costs less than a table
/// beyond the processor's caches.
///
/// An entry has 32 bits. The lower 24 are the record's number, the upper eight are a part of the hash. Sixteen share a
/// cache line, and the hash bits save most reads of wrong records.
export class block_table {
public:
  /// Makes a table of blocks whose records are in `metadata`, to which it keeps a reference.
  explicit block_table(block_metadata const& metadata);

  /// Makes sure that `count` more blocks can be inserted. Throws std::bad_alloc.
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

  /// Returns the block that starts at the address and is in the table; null if there is none. The caller owns that
  /// block or holds the lock of the shard; otherwise the result may be wrong as soon as it is returned.
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
  static constexpr entry erased = 1; // the block was erased; searches go on after it
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
  // Bits from the middle of the hash, since its upper bits choose the slot.
  static inline entry fingerprint_of(std::uint64_t hash) noexcept { return static_cast<entry>(hash) & ~number_mask; }
  inline block& block_of(entry one) const noexcept { return metadata_.at(one & number_mask); }
  // Inserts the block. Returns whether the entry that it got was never used before.
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
  // Called for an erased entry `i` whose next entry was never used. A search ends at a never-used entry, so it need not
  // go on after `i`. Entry `i`, and the erased entries right before `i`, therefore become never used again.
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
  alignas(64) std::size_t used_ = 0; // entries in use or erased; not on a cache line that other threads read
};

} // namespace gpumem::detail
