// The block table, which finds blocks by address, and the memory of their records.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_table;
import :block;
import :hash;
import :std;

namespace gpumem::detail {

/// An array of block records, each numbered by its place. The array's addresses are reserved when the first record is
/// needed, and get memory as they are needed. The memory stays until the end of the pool, so a thread may read a record
/// that another thread releases meanwhile. All functions but `at` need the lock of the shard.
export class block_metadata {
public:
  /// Bits of a record's number: a shard has at most sixteen million records. Numbers below `first_number` have no
  /// record.
  static constexpr unsigned number_bits = 24;
  static constexpr std::uint32_t first_number = 2;

  block_metadata() = default;
  block_metadata(block_metadata const&) = delete;
  block_metadata& operator=(block_metadata const&) = delete;
  ~block_metadata();

  /// Makes sure that `count` records can be allocated. Throws std::bad_alloc, also if no number or address is left.
  inline void reserve(std::size_t count) {
    while (spare_count_ < count) [[unlikely]]
      grow();
  }
  /// Returns one of the reserved records. Its block has no uses and is on no free list.
  inline block& allocate() noexcept {
    auto& taken = *spare_;
    spare_ = taken.next;
    --spare_count_;
    taken.uses.clear();
    taken.set_state(block_state::allocated);
    return taken;
  }
  inline void deallocate(block& record) noexcept {
    record.next = spare_;
    spare_ = &record;
    ++spare_count_;
  }

  inline std::uint32_t number_of(block const& block) const noexcept {
    return static_cast<std::uint32_t>(&block - base_);
  }
  /// Returns the record with this number. A thread without the lock may pass only a number that it has loaded with
  /// memory_order_acquire, and that was stored after the record's allocation.
  inline block& at(std::uint32_t number) const noexcept { return base_[number]; }

private:
  void grow();
  void reserve_addresses();
  void add_memory();

  block* base_ = nullptr;
  void* reserved_ = nullptr;
  // On another cache line than `base_`, which threads without the lock read when they search for a block.
  alignas(64) std::size_t next_ = first_number; // numbers from this one on have no record yet
  std::size_t backed_ = 0;                      // numbers from this one on have no memory yet
  std::size_t end_ = 0;                         // numbers from this one on have no address
  block* spare_ = nullptr;
  std::size_t spare_count_ = 0;
};

/// A hash table that finds the record of a block by the block's address. It holds all blocks of a shard except free
/// ranges and holes. Changes of the table need the lock of the shard. The owner of a block may find it without that
/// lock: the block's entry does not move, and outgrown tables are kept.
///
/// At least three quarters of a table are empty, so that few searches read a second entry. A table with 64 Ki entries
/// or more may be half full: a second entry costs less than a table that exceeds the processor's caches.
///
/// An entry has 32 bits: the record's number in the lower ones, eight bits of the hash in the upper ones. Sixteen
/// entries share a cache line, and most wrong records are recognized by the hash bits alone.
export class block_table {
public:
  /// Makes a table of blocks whose records are in `metadata`. The table keeps a reference to `metadata`.
  explicit block_table(block_metadata const& metadata);

  /// Makes sure that `count` more blocks can be inserted. Throws std::bad_alloc.
  inline void reserve(std::size_t count) {
    while (used_entries_ + count > current_.load(std::memory_order_relaxed)->max_used) [[unlikely]]
      rebuild();
  }
  inline void insert(block& added) noexcept {
    used_entries_ += insert_in(*current_.load(std::memory_order_relaxed), added);
  }
  inline void erase(block const& returned) noexcept {
    auto& in = *current_.load(std::memory_order_relaxed);
    in.entries[returned.table_slot].store(erased, std::memory_order_relaxed);
    if (in.entries[(returned.table_slot + 1) & in.mask].load(std::memory_order_relaxed) == never_used)
      reclaim(in, returned.table_slot);
  }

  /// Returns the block in the table that starts at the address; null if there is none. The result is certain if the
  /// caller owns that block or holds the lock of the shard. For other callers it may be out of date.
  inline block* find(void const* pointer) const noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(pointer);
    auto const& slots = *current_.load(std::memory_order_acquire);
    auto const hash = hash_of(address);
    for (auto i = slots.slot_of(hash);; i = (i + 1) & slots.mask) {
      auto const seen = slots.entries[i].load(std::memory_order_acquire);
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
  static constexpr entry erased = 1; // a search goes on after this entry
  static_assert(block_metadata::first_number > erased);
  static constexpr entry number_mask = (entry{1} << block_metadata::number_bits) - 1;
  static constexpr std::size_t smallest = 256;
  static constexpr std::size_t large = std::size_t{1} << 16;

  struct table {
    explicit table(std::size_t size);
    inline std::size_t slot_of(std::uint64_t hash) const noexcept { return hash >> shift; }
    std::size_t mask;
    std::size_t max_used; // the largest number of entries that are in use or erased
    unsigned shift;
    std::unique_ptr<std::atomic<entry>[]> entries;
  };
  static inline std::uint64_t hash_of(std::uintptr_t address) noexcept { return fibonacci_hash(address / granule); }
  // Bits from the middle of the hash, since its upper bits choose the slot.
  static inline entry fingerprint_of(std::uint64_t hash) noexcept { return static_cast<entry>(hash) & ~number_mask; }
  inline block& block_of(entry entry) const noexcept { return metadata_.at(entry & number_mask); }
  // Inserts a block. Returns whether its entry was never used before.
  inline bool insert_in(table& table, block& added) noexcept {
    auto const hash = hash_of(added.base);
    auto i = table.slot_of(hash);
    auto seen = table.entries[i].load(std::memory_order_relaxed);
    while (seen > erased) {
      i = (i + 1) & table.mask;
      seen = table.entries[i].load(std::memory_order_relaxed);
    }
    table.entries[i].store(metadata_.number_of(added) | fingerprint_of(hash), std::memory_order_release);
    added.table_slot = static_cast<std::uint32_t>(i);
    return seen == never_used;
  }
  // Called if the entry after entry `i` was never used. No search needs to go on there, so this marks entry `i`, and
  // all erased entries directly before it, as never used.
  inline void reclaim(table& table, std::size_t i) noexcept {
    for (; table.entries[i].load(std::memory_order_relaxed) == erased; i = (i - 1) & table.mask) {
      table.entries[i].store(never_used, std::memory_order_relaxed);
      --used_entries_;
    }
  }
  void rebuild();

  block_metadata const& metadata_;
  std::vector<std::unique_ptr<table>> tables_;
  std::atomic<table*> current_{nullptr};
  alignas(64) std::size_t used_entries_ = 0; // entries in use or erased; not on a cache line that other threads read
};

} // namespace gpumem::detail
