// The large cache of a thread: the large blocks that it freed last, and medium blocks for which its stream caches had
// no room.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:large_cache;
import :block;
import :hash;
import :std;
import :stream_timeline;
import :tuning;

namespace gpumem::detail {

/// Up to eight freed blocks, found by stream and exact size. Programs request most large sizes again at once or not at
/// all. On recorded traces of training and inference the last eight blocks serve a tenth to a half of all requests.
/// Other blocks are evicted, so that they soon coalesce with their neighbours. If the cached blocks are not requested,
/// the cache takes no blocks for a while. Guarded by the lock of the thread cache that it is a part of.
export class large_cache {
public:
  static constexpr unsigned capacity = 8;

  inline bool empty() const noexcept { return used_ == 0; }
  inline bool full() const noexcept { return used_ == (1u << capacity) - 1; }
  /// Returns whether the next freed block is to be inserted: whether cached blocks have been requested lately. If they
  /// have not, every `max_skipped_blocks`th call raises the score, so that some blocks are inserted for a trial.
  inline bool enabled() noexcept {
    if (score_ > 0) [[likely]]
      return true;
    ++skipped_;
    if (skipped_ < tuning::max_skipped_blocks) return false;
    skipped_ = 0;
    score_ = tuning::large_trial_score;
    return true;
  }

  /// Removes and returns a block of this size that the stream has freed; null if there is none.
  [[gnu::always_inline]] inline block* pop(stream_timeline const& timeline, std::size_t bytes) noexcept {
    for (auto found = matching(fingerprint_of(timeline, bytes)) & used_; found; found &= found - 1) {
      auto const i = static_cast<unsigned>(std::countr_zero(found));
      auto& kept = *cells_[i];
      if (kept.bytes != bytes || kept.uses.begin()->timeline != &timeline) [[unlikely]]
        continue; // another block with the same fingerprint
      clear(i);
      score_ = std::min(score_ + tuning::large_hit_score, tuning::max_large_score);
      return &kept;
    }
    return nullptr;
  }
  /// Inserts a block, which later serves the stream of its only use. The cache is not full.
  [[gnu::always_inline]] inline void insert(block& freed) noexcept {
    auto const i = static_cast<unsigned>(std::countr_one(used_));
    auto const fingerprint = fingerprint_of(*freed.uses.begin()->timeline, freed.bytes);
    cells_[i] = &freed;
    // Writes all fingerprints at once, because pop() reads all at once: a load stalls if the store before it was
    // narrower.
    fingerprints_ = cell_numbers == i ? fingerprints{} + fingerprint : fingerprints_;
    used_ |= 1u << i;
  }
  /// Removes and returns one block, taking the cells in turn; null if the cache is empty. Lowers the score, because no
  /// request has used the block.
  inline block* evict() noexcept {
    if (score_ > 0) score_ -= 1;
    return pop_any();
  }
  /// Does what evict() does, but keeps the score: for a flush, since the block might have been requested later.
  block* pop_any() noexcept;

private:
  using fingerprints [[gnu::vector_size(capacity * sizeof(std::uint32_t))]] = std::uint32_t;

  static inline std::uint32_t fingerprint_of(stream_timeline const& timeline, std::size_t bytes) noexcept {
    return static_cast<std::uint32_t>(fibonacci_hash(bytes + reinterpret_cast<std::uintptr_t>(&timeline)) >> 32);
  }
  // Returns a mask of the cells with this fingerprint. Cells without a block may be among them.
  inline std::uint32_t matching(std::uint32_t fingerprint) const noexcept {
    auto const same = fingerprints_ == fingerprint;
#ifdef __clang__
    using matches = bool __attribute__((ext_vector_type(capacity))); // GCC has no vectors of bool
    return std::bit_cast<std::uint8_t>(__builtin_convertvector(same, matches));
#else
    std::uint32_t found = 0;
    for (unsigned i = 0; i < capacity; ++i) found |= (same[i] & 1u) << i;
    return found;
#endif
  }
  static constexpr fingerprints cell_numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  inline void clear(unsigned i) noexcept { used_ &= ~(1u << i); }

  fingerprints fingerprints_{};
  std::array<block*, capacity> cells_{};
  std::uint32_t used_ = 0; // a mask of the cells with a block
  unsigned next_ = 0;      // the cell that is evicted next
  int score_ = tuning::max_large_score / 4;
  std::uint32_t skipped_ = 0;
};

} // namespace gpumem::detail
