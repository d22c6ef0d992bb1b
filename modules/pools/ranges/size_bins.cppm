// Size bins: free ranges by size, found in constant time.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:size_bins;
import :block;
import :std;

namespace gpumem::detail {

/// Two-level segregated fit (Masmano, Ripoll, Crespo, Real 2004). Each size below 128 granules has a bin of its own.
/// Larger sizes have 64 bins for each power of two, so that the sizes in a bin differ by 1.6 % at most. A search visits
/// the bins from the smallest possible one on, and looks at the block that was put into a bin last. It takes the first
/// such block that is large enough, which is nearly the best fit. If there is none, it looks at all blocks. Guarded by
/// the lock of the shard that owns the bins.
export class size_bins {
public:
  inline size_bins() noexcept {
    heads_.fill(&end_);
    used_.back() = 1;
  }
  static constexpr unsigned steps_log2 = 6;
  static constexpr unsigned exact_bins = 2u << steps_log2;
  static constexpr unsigned bin_count = 35u << steps_log2;

  /// Returns the bin of a size in bytes; the last bin holds all larger sizes too.
  static inline unsigned bin_of(std::size_t bytes) noexcept {
    auto const granules = bytes / granule;
    auto const shift = static_cast<unsigned>(std::bit_width(granules | 1u << steps_log2)) - steps_log2 - 1;
    auto const bin = (std::size_t{shift} << steps_log2) + (granules >> shift);
    return bin < bin_count ? static_cast<unsigned>(bin) : bin_count - 1;
  }

  inline void insert(block& one) noexcept { insert_into(bin_of(one.bytes), one); }
  inline void insert_into(unsigned bin, block& one) noexcept {
    auto& head = heads_[bin];
    one.bin = static_cast<std::uint16_t>(bin);
    one.bin_link = &head;
    one.next = head;
    head->bin_link = &one.next;
    head = &one;
    used_[bin / word_bits] |= std::uint64_t{1} << bin % word_bits;
    used_words_ |= std::uint64_t{1} << bin / word_bits;
  }
  inline void remove(block& one) noexcept {
    one.next->bin_link = one.bin_link;
    *one.bin_link = one.next;
    std::uint64_t const emptied = heads_[one.bin] == &end_;
    auto& word = used_[one.bin / word_bits];
    word &= ~(emptied << one.bin % word_bits);
    used_words_ &= ~(std::uint64_t{word == 0} << one.bin / word_bits);
  }
  /// Moves a block to its bin after its size has changed.
  inline void resized(block& one) noexcept {
    auto const bin = bin_of(one.bytes);
    if (bin == one.bin) [[unlikely]]
      return;
    remove(one);
    insert_into(bin, one);
  }

  /// Returns a block into which `bytes`, a multiple of the granule, fit with this alignment, and sets `offset` to their
  /// place in it. Null if there is none.
  inline block* find(std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept {
    auto const bin = next_used(bin_of(bytes));
    if (bin >= exact_bins || alignment > granule) return search(bin, bytes, alignment, offset);
    offset = 0;
    return heads_[bin];
  }

  /// Visits the blocks of the bin of this size and of all bins above it. Some blocks of the first bin may be smaller
  /// than `bytes`.
  template <class Visit> void visit_from(std::size_t bytes, Visit const& visitor) const {
    for (auto bin = next_used(bin_of(bytes)); bin < bin_count; bin = next_used(bin + 1)) {
      for (auto* each = heads_[bin]; each != &end_; each = each->next) visitor(*each);
    }
  }

  inline bool empty() const noexcept { return next_used(0) == bin_count; }
  std::size_t largest() const noexcept;

private:
  static constexpr unsigned word_bits = 64;
  static constexpr unsigned word_count = bin_count / word_bits;
  static_assert(bin_count % word_bits == 0 && word_count < word_bits);

  // Returns the first bin from `from` on that is not empty; bin_count if all are empty.
  inline unsigned next_used(unsigned from) const noexcept {
    auto const word = from / word_bits;
    auto const rest = used_[word] & (~std::uint64_t{0} << from % word_bits);
    auto const beyond = static_cast<unsigned>(std::countr_zero((used_words_ & (~std::uint64_t{1} << word)) | sentinel));
    auto const none = 0 - static_cast<unsigned>(rest == 0); // all bits set or none: a mask in place of a branch
    auto const next = word ^ ((word ^ beyond) & none);
    auto const bits = rest | (used_[beyond] & (0 - std::uint64_t{rest == 0}));
    return next * word_bits + static_cast<unsigned>(std::countr_zero(bits));
  }
  block* search(unsigned first, std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept;
  block* find_in(block* head, std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept;

  // The code has no branches on the contents of bins, because the processor would mispredict them for random sizes. So
  // every list ends at the dummy block `end_`, and `used_` has one more word, which always has a bit set.
  static constexpr std::uint64_t sentinel = std::uint64_t{1} << word_count;
  std::uint64_t used_words_ = sentinel;
  std::array<std::uint64_t, word_count + 1> used_{};
  std::array<block*, bin_count> heads_;
  block end_;
};

} // namespace gpumem::detail
