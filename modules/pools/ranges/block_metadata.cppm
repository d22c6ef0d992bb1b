// The block metadata: memory for the records of the blocks of a shard, a part of a pool with a lock of its own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_metadata;
import :block;
import :std;

namespace gpumem::detail {

/// Block records, numbered by their place in one run of addresses. The addresses are reserved at first, and get memory
/// as needed. Records stay while the pool lives, so a thread may read one that was released meanwhile. The lock of the
/// shard guards everything but `at`.
export class block_metadata {
public:
  /// Bits of a record number; a shard has at most sixteen million records. Numbers below first_number are not used.
  static constexpr unsigned number_bits = 24;
  static constexpr std::uint32_t first_number = 2;

  block_metadata() = default;
  block_metadata(block_metadata const&) = delete;
  block_metadata& operator=(block_metadata const&) = delete;
  ~block_metadata();

  /// Makes sure that `count` records can be taken. Throws std::bad_alloc, also if the numbers or addresses run out.
  inline void reserve(std::size_t count) {
    while (spare_count_ < count) [[unlikely]]
      grow();
  }
  /// Takes a reserved record. The record has no uses by streams, and is on no free list.
  inline block& allocate() noexcept {
    auto& taken = *spare_;
    spare_ = taken.next;
    --spare_count_;
    taken.uses.clear();
    taken.set_state(block_state::allocated);
    return taken;
  }
  inline void release(block& unused) noexcept {
    unused.next = spare_;
    spare_ = &unused;
    ++spare_count_;
  }

  inline std::uint32_t number_of(block const& one) const noexcept { return static_cast<std::uint32_t>(&one - base_); }
  /// Returns the record with this number. Called by any thread that has seen a store made after the record was taken,
  /// such as the store of the number in the block table.
  inline block& at(std::uint32_t number) const noexcept { return base_[number]; }

private:
  void grow();
  void reserve_addresses();
  void add_memory();

  block* base_ = nullptr;
  void* reserved_ = nullptr;
  // These members are not on the cache line of `base_`, which other threads read when they search for a block.
  alignas(64) std::size_t next_ = first_number; // numbers from this one on have no record yet
  std::size_t backed_ = 0;                      // numbers from this one on have no memory yet
  std::size_t end_ = 0;                         // numbers from this one on have no address
  block* spare_ = nullptr;
  std::size_t spare_count_ = 0;
};

} // namespace gpumem::detail
