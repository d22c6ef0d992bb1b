// The last large blocks that a thread has freed, and medium ones for which it had no other place.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:recent_blocks;
import :block;
import :hash;
import :std;
import :tags;
import :timeline;

namespace gpumem::detail {

/// A few freed blocks, found by stream and exact size. Of large blocks that are asked for again most are so at once: of
/// recorded traces of training and inference the last eight serve a tenth to a half of all requests, and what is not
/// kept any more is soon joined with its neighbours. Where they are not asked for, keeping is left out for a while.
/// Guarded by the lock of its thread.
export class recent_blocks {
public:
  static constexpr unsigned most = 8;

  inline bool empty() const noexcept { return used_ == 0; }
  inline bool full() const noexcept { return used_ == (1u << most) - 1; }
  /// Whether blocks that were kept have been asked for, or it is time to try that again.
  inline bool worthwhile() noexcept {
    if (worth_ > 0) [[likely]]
      return true;
    ++left_out_;
    if (left_out_ < most_left_out) return false;
    left_out_ = 0;
    worth_ = trial;
    return true;
  }

  /// A block of that size that was kept for the stream, no longer kept; or null.
  [[gnu::always_inline]] inline block* take(timeline const& order, std::size_t bytes) noexcept {
    for (auto found = alike(mark_of(order, bytes)) & used_; found; found &= found - 1) {
      auto const i = static_cast<unsigned>(std::countr_zero(found));
      auto& kept = *cells_[i];
      if (kept.bytes != bytes || kept.tags.begin()->order != &order) [[unlikely]]
        continue; // of the same mark
      clear(i);
      worth_ = std::min(worth_ + use, most_worth);
      return &kept;
    }
    return nullptr;
  }
  /// Keeps a block for the stream of its only tag. There is place.
  [[gnu::always_inline]] inline void keep(block& freed) noexcept {
    auto const i = static_cast<unsigned>(std::countr_one(used_));
    auto const mark = mark_of(*freed.tags.begin()->order, freed.bytes);
    cells_[i] = &freed;
    // All marks are written at once, as they are read: what is read wider than it was written has to wait for that.
    marks_ = numbers == i ? marks{} + mark : marks_;
    used_ |= 1u << i;
  }
  /// The one whose turn it is, no longer kept: it was not asked for. Null where there is none, and keeping is of no use
  /// either.
  inline block* evict() noexcept {
    if (worth_ > 0) worth_ -= 1;
    return pop();
  }
  /// As evict, for a sweep, which does not tell whether it would have been asked for.
  block* pop() noexcept;

private:
  using marks = std::uint32_t __attribute__((vector_size(most * sizeof(std::uint32_t))));
  using answers = bool __attribute__((ext_vector_type(most)));
  // A use saves two calls of a shard, an eviction costs a part of one; that it is a fifth is a guess.
  static constexpr int use = 5, trial = 16, most_worth = 256;
  static constexpr std::uint32_t most_left_out = 1024;

  static inline std::uint32_t mark_of(timeline const& order, std::size_t bytes) noexcept {
    return static_cast<std::uint32_t>(spread(bytes + reinterpret_cast<std::uintptr_t>(&order)) >> 32);
  }
  // The cells of that mark, a bit each; empty ones too.
  inline std::uint32_t alike(std::uint32_t mark) const noexcept {
    auto const same = __builtin_convertvector(marks_ == mark, answers);
    return std::bit_cast<std::uint8_t>(same);
  }
  static constexpr marks numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  inline void clear(unsigned i) noexcept { used_ &= ~(1u << i); }

  marks marks_{};
  std::array<block*, most> cells_{};
  std::uint32_t used_ = 0; // cells, a bit each
  unsigned next_ = 0;      // the cell that goes next
  int worth_ = most_worth / 4;
  std::uint32_t left_out_ = 0;
};

} // namespace gpumem::detail
