// The last large blocks that a thread has freed, and medium ones for which it had no other place.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:large_cache;
import :block;
import :hash;
import :std;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

/// A few freed blocks, found by stream and exact size. Of large blocks that are asked for again most are so at once: of
/// recorded traces of training and inference the last eight serve a tenth to a half of all requests, and what is not
/// kept any more is soon joined with its neighbours. Where they are not asked for, keeping is left out for a while.
/// Guarded by the lock of its thread.
export class large_cache {
public:
  static constexpr unsigned capacity = 8;

  inline bool empty() const noexcept { return used_ == 0; }
  inline bool full() const noexcept { return used_ == (1u << capacity) - 1; }
  /// Whether blocks that were kept have been asked for, or it is time to try that again.
  inline bool enabled() noexcept {
    if (score_ > 0) [[likely]]
      return true;
    ++skipped_;
    if (skipped_ < max_skipped) return false;
    skipped_ = 0;
    score_ = trial_score;
    return true;
  }

  /// A block of that size that was kept for the stream, no longer kept; or null.
  [[gnu::always_inline]] inline block* pop(stream_timeline const& timeline, std::size_t bytes) noexcept {
    for (auto found = matching(fingerprint_of(timeline, bytes)) & used_; found; found &= found - 1) {
      auto const i = static_cast<unsigned>(std::countr_zero(found));
      auto& kept = *cells_[i];
      if (kept.bytes != bytes || kept.uses.begin()->timeline != &timeline) [[unlikely]]
        continue; // of the same fingerprint
      clear(i);
      score_ = std::min(score_ + hit_score, max_score);
      return &kept;
    }
    return nullptr;
  }
  /// Keeps a block for the stream of its only use. There is place.
  [[gnu::always_inline]] inline void insert(block& freed) noexcept {
    auto const i = static_cast<unsigned>(std::countr_one(used_));
    auto const fingerprint = fingerprint_of(*freed.uses.begin()->timeline, freed.bytes);
    cells_[i] = &freed;
    // All fingerprints are written at once, as they are read: what is read wider than it was written has to wait for
    // that.
    fingerprints_ = cell_numbers == i ? fingerprints{} + fingerprint : fingerprints_;
    used_ |= 1u << i;
  }
  /// The one whose turn it is, no longer kept: it was not asked for. Null where there is none, and keeping is of no use
  /// either.
  inline block* evict() noexcept {
    if (score_ > 0) score_ -= 1;
    return pop_any();
  }
  /// As evict, for a flush, which does not tell whether it would have been asked for.
  block* pop_any() noexcept;

private:
  using fingerprints = std::uint32_t __attribute__((vector_size(capacity * sizeof(std::uint32_t))));
  using matches = bool __attribute__((ext_vector_type(capacity)));
  // A use saves two calls of a shard, an eviction costs a part of one; that it is a fifth is a guess.
  static constexpr int hit_score = 5, trial_score = 16, max_score = 256;
  static constexpr std::uint32_t max_skipped = 1024;

  static inline std::uint32_t fingerprint_of(stream_timeline const& timeline, std::size_t bytes) noexcept {
    return static_cast<std::uint32_t>(fibonacci_hash(bytes + reinterpret_cast<std::uintptr_t>(&timeline)) >> 32);
  }
  // The cells of that fingerprint, a bit each; empty ones too.
  inline std::uint32_t matching(std::uint32_t fingerprint) const noexcept {
    auto const same = __builtin_convertvector(fingerprints_ == fingerprint, matches);
    return std::bit_cast<std::uint8_t>(same);
  }
  static constexpr fingerprints cell_numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  inline void clear(unsigned i) noexcept { used_ &= ~(1u << i); }

  fingerprints fingerprints_{};
  std::array<block*, capacity> cells_{};
  std::uint32_t used_ = 0; // cells, a bit each
  unsigned next_ = 0;      // the cell that goes next
  int score_ = max_score / 4;
  std::uint32_t skipped_ = 0;
};

} // namespace gpumem::detail
