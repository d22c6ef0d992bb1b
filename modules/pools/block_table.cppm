// Blocks by the pointers that were given out.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_table;
import :block;
import :hash;
import :records;
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
  explicit block_table(record_array const& records);

  /// Makes sure that so many more can be put. Throws std::bad_alloc.
  inline void reserve(std::size_t count) {
    while (used_ + count > current_.load(std::memory_order_relaxed)->most) [[unlikely]]
      rebuild();
  }
  inline void put(block& granted) noexcept { used_ += put_in(*current_.load(std::memory_order_relaxed), granted); }
  inline void drop(block const& freed) noexcept {
    auto& in = *current_.load(std::memory_order_relaxed);
    in.entries[freed.entry].store(dropped, std::memory_order_relaxed);
    if (in.entries[(freed.entry + 1) & in.mask].load(std::memory_order_relaxed) == never_used) clean(in, freed.entry);
  }

  /// The block that begins at the address and is not free, or null. Any thread that owns the block; under the lock,
  /// any.
  inline block* find(void const* pointer) const noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(pointer);
    auto const& in = *current_.load(std::memory_order_acquire);
    auto const hash = hash_of(address);
    for (auto i = in.slot_of(hash);; i = (i + 1) & in.mask) {
      auto const seen = in.entries[i].load(std::memory_order_acquire);
      if ((seen ^ mark_of(hash)) <= numbers && seen > dropped) [[likely]] {
        auto& found = record_of(seen);
        if (found.base == address) [[likely]]
          return &found;
      }
      if (seen == never_used) return nullptr;
    }
  }

private:
  using entry = std::uint32_t;
  static constexpr entry never_used = 0;
  static constexpr entry dropped = 1; // no block begins there
  static_assert(record_array::first_number > dropped);
  static constexpr entry numbers = (entry{1} << record_array::number_bits) - 1;
  static constexpr std::size_t smallest = 256;
  static constexpr std::size_t large = std::size_t{1} << 16;

  struct table {
    explicit table(std::size_t size);
    inline std::size_t slot_of(std::uint64_t hash) const noexcept { return hash >> shift; }
    std::size_t mask;
    std::size_t most; // entries in use or dropped
    unsigned shift;
    std::unique_ptr<std::atomic<entry>[]> entries;
  };
  static inline std::uint64_t hash_of(std::uintptr_t address) noexcept { return spread(address / granule); }
  // Out of the middle of the hash, whose upper bits choose the slot.
  static inline entry mark_of(std::uint64_t hash) noexcept { return static_cast<entry>(hash) & ~numbers; }
  inline block& record_of(entry one) const noexcept { return records_.at(one & numbers); }
  // Whether into an entry that was never used.
  inline bool put_in(table& in, block& granted) noexcept {
    auto const hash = hash_of(granted.base);
    auto i = in.slot_of(hash);
    auto seen = in.entries[i].load(std::memory_order_relaxed);
    while (seen > dropped) {
      i = (i + 1) & in.mask;
      seen = in.entries[i].load(std::memory_order_relaxed);
    }
    in.entries[i].store(records_.number_of(granted) | mark_of(hash), std::memory_order_release);
    granted.entry = static_cast<std::uint32_t>(i);
    return seen == never_used;
  }
  // No search passes an entry behind which none was ever used: it, and what was dropped just before, is as good as
  // never used again.
  inline void clean(table& in, std::size_t i) noexcept {
    for (; in.entries[i].load(std::memory_order_relaxed) == dropped; i = (i - 1) & in.mask) {
      in.entries[i].store(never_used, std::memory_order_relaxed);
      --used_;
    }
  }
  void rebuild();

  record_array const& records_;
  std::vector<std::unique_ptr<table>> tables_;
  std::atomic<table*> current_{nullptr};
  alignas(64) std::size_t used_ = 0; // or dropped; not beside what other threads read
};

} // namespace gpumem::detail
