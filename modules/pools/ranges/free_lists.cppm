// The free lists of a shard, by stream; size bins and quick lists.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:free_lists;
import :stream_epochs;
import :block;
import :std;
import :stream_timeline;

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
    used_bins_.back() = 1;
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

  inline void insert(block& block) noexcept { insert_into(bin_of(block.bytes), block); }
  inline void insert_into(unsigned bin, block& block) noexcept {
    auto& head = heads_[bin];
    block.bin = static_cast<std::uint16_t>(bin);
    block.bin_link = &head;
    block.next = head;
    head->bin_link = &block.next;
    head = &block;
    used_bins_[bin / word_bits] |= std::uint64_t{1} << bin % word_bits;
    used_words_ |= std::uint64_t{1} << bin / word_bits;
  }
  inline void remove(block& block) noexcept {
    block.next->bin_link = block.bin_link;
    *block.bin_link = block.next;
    std::uint64_t const emptied = heads_[block.bin] == &end_;
    auto& word = used_bins_[block.bin / word_bits];
    word &= ~(emptied << block.bin % word_bits);
    used_words_ &= ~(std::uint64_t{word == 0} << block.bin / word_bits);
  }
  /// Moves a block to its bin after its size has changed.
  inline void resized(block& block) noexcept {
    auto const bin = bin_of(block.bytes);
    if (bin == block.bin) [[unlikely]]
      return;
    remove(block);
    insert_into(bin, block);
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
    visit_until(bytes, [&](block& each) {
      visitor(each);
      return false;
    });
  }
  /// Does the same until the visitor returns true.
  template <class Visit> void visit_until(std::size_t bytes, Visit const& visitor) const {
    for (auto bin = next_used(bin_of(bytes)); bin < bin_count; bin = next_used(bin + 1)) {
      for (auto* each = heads_[bin]; each != &end_; each = each->next) {
        if (visitor(*each)) return;
      }
    }
  }

  inline bool empty() const noexcept { return next_used(0) == bin_count; }
  std::size_t largest() const noexcept;

private:
  static constexpr unsigned word_bits = 64;
  static constexpr unsigned word_count = bin_count / word_bits;
  static_assert(bin_count % word_bits == 0 && word_count < word_bits);

  // Returns the first bin from `first` on that is not empty; bin_count if all are empty.
  inline unsigned next_used(unsigned first) const noexcept {
    auto const word = first / word_bits;
    auto const rest = used_bins_[word] & (~std::uint64_t{0} << first % word_bits);
    auto const beyond = static_cast<unsigned>(std::countr_zero((used_words_ & (~std::uint64_t{1} << word)) | sentinel));
    auto const none = 0 - static_cast<unsigned>(rest == 0); // all bits set or none: a mask in place of a branch
    auto const next = word ^ ((word ^ beyond) & none);
    auto const bits = rest | (used_bins_[beyond] & (0 - std::uint64_t{rest == 0}));
    return next * word_bits + static_cast<unsigned>(std::countr_zero(bits));
  }
  block* search(unsigned first, std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept;
  block* find_in(block* head, std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept;

  // The code has no branches on the contents of bins, because the processor would mispredict them for random sizes. So
  // every list ends at the dummy block `end_`, and `used_bins_` has one more word, which always has a bit set.
  static constexpr std::uint64_t sentinel = std::uint64_t{1} << word_count;
  std::uint64_t used_words_ = sentinel;
  std::array<std::uint64_t, word_count + 1> used_bins_{};
  std::array<block*, bin_count> heads_;
  block end_;
};

/// Freed small blocks that the same streams may still use, one list for each size class, the newest block first. They
/// coalesce with their neighbours only after `pop_all`. Most of them are allocated again before that, and then neither
/// the free nor the allocation touches other blocks. This is Quick Fit (Weinstock and Wulf 1988). Guarded by the lock
/// of the shard that owns the lists.
export class quick_lists {
public:
  /// Most blocks of one size on a quick list. Utilization: no change.
  static constexpr std::size_t max_quick_blocks = 64;

  inline block* head(std::size_t bytes) const noexcept { return heads_[size_class::number_of_small(bytes)]; }
  inline bool empty() const noexcept { return bytes_ == 0; }
  inline std::size_t bytes() const noexcept { return bytes_; }

  /// Returns how many more blocks of this size the list takes.
  inline std::size_t room(std::size_t bytes) const noexcept {
    return max_quick_blocks - counts_[size_class::number_of_small(bytes)];
  }
  /// Adds a block. Returns false if the list of its size has `max_quick_blocks`: without a bound a stream that frees
  /// and never allocates would fill the list with blocks that do not coalesce.
  inline bool push(block& returned) noexcept {
    auto const size = size_class::number_of_small(returned.bytes);
    if (counts_[size] >= max_quick_blocks) return false;
    ++counts_[size];
    returned.next = heads_[size];
    heads_[size] = &returned;
    bytes_ += returned.bytes;
    returned.set_state(block_state::quick_listed);
    return true;
  }
  /// Removes a block, the newest of its size, and marks it as allocated.
  inline void pop(block& listed) noexcept {
    auto const size = size_class::number_of_small(listed.bytes);
    --counts_[size];
    heads_[size] = listed.next;
    bytes_ -= listed.bytes;
    listed.set_state(block_state::allocated);
  }
  /// Removes all blocks, links them by `next`, and links the last one to `chain`. Returns the first one.
  block* pop_all(block* chain) noexcept;

  template <class Visit> void visit(Visit visitor) const {
    if (empty()) return;
    for (auto const* head : heads_) {
      for (; head; head = head->next) visitor(*head);
    }
  }

private:
  std::array<block*, size_class::small_count> heads_{};
  std::array<std::uint16_t, size_class::small_count> counts_{};
  std::size_t bytes_ = 0;
};

/// Free ranges by size, and quick lists. A range has the epoch of its last use. If all ranges wait for one stream, they
/// are also in order of their epochs. Guarded by the lock of the shard that owns the list.
export class free_list {
public:
  /// Returns the one stream for which all ranges here wait; null if they wait for none or for several.
  inline stream_timeline* timeline() const noexcept { return timeline_; }
  /// Returns whether the list has no range.
  inline bool empty() const noexcept { return count_ == 0; }
  /// Returns whether the list has neither a range nor a small block.
  inline bool unused() const noexcept { return empty() && quick_.empty(); }
  inline std::size_t size() const noexcept { return count_; }
  inline size_bins& bins() noexcept { return bins_; }
  inline size_bins const& bins() const noexcept { return bins_; }
  inline quick_lists& quick() noexcept { return quick_; }
  inline quick_lists const& quick() const noexcept { return quick_; }
  inline block* oldest() const noexcept { return oldest_; }
  inline block* newest() const noexcept { return newest_; }

  /// Inserts a range in order of its epoch. That is fast for the newest epoch, which most ranges have.
  inline void insert(block& range) noexcept {
    link_in_order(range);
    bins_.insert(range);
  }
  /// Inserts a range after `neighbour`, a range of the same epoch on this list.
  inline void insert_beside(block& range, block& neighbour) noexcept {
    link_after(range, &neighbour);
    bins_.insert(range);
  }
  inline void remove(block& range) noexcept {
    unlink(range);
    bins_.remove(range);
  }
  /// Updates the list after one of its ranges has grown by other memory. `uses`: the uses of that memory, by the same
  /// streams as the uses of the range.
  [[gnu::always_inline]] inline void grow(block& range, stream_uses const& uses) noexcept {
    bins_.resized(range);
    bool const later = timeline_ && epoch_of(range) < uses.begin()->newest;
    if (!uses.empty()) range.uses.join(uses);
    if (!later || newest_ == &range) return;
    unlink(range);
    link_in_order(range);
  }

  /// Returns whether a range here has a use that the host has not seen complete. With `without_event` a use counts only
  /// if no event was recorded after it.
  bool in_use(bool without_event) const noexcept;

  /// Counts a free of the stream for which no event was recorded. Returns whether `frees_per_batch` frees or
  /// `threshold_bytes` were counted. The caller then adds these counts to those of the stream's timeline, and resets
  /// them here.
  inline bool count_free(std::size_t bytes, std::size_t threshold_bytes) noexcept {
    ++unrecorded_frees;
    unrecorded_bytes += bytes;
    return unrecorded_frees >= stream_epochs::frees_per_batch || unrecorded_bytes >= threshold_bytes;
  }
  std::uint32_t unrecorded_frees = 0;
  std::size_t unrecorded_bytes = 0;

private:
  friend class free_lists;
  static inline epoch epoch_of(block const& range) noexcept { return range.uses.begin()->newest; }
  inline void link_in_order(block& range) noexcept {
    bool const newest = !timeline_ || !newest_ || epoch_of(*newest_) <= epoch_of(range);
    link_after(range, newest ? newest_ : insertion_point(range));
  }
  inline void link_after(block& range, block* predecessor) noexcept {
    range.older = predecessor;
    range.newer = predecessor ? predecessor->newer : oldest_;
    (predecessor ? predecessor->newer : oldest_) = &range;
    (range.newer ? range.newer->older : newest_) = &range;
    range.list = this;
    ++count_;
  }
  inline void unlink(block& range) noexcept {
    (range.older ? range.older->newer : oldest_) = range.newer;
    (range.newer ? range.newer->older : newest_) = range.older;
    if (late_ == &range) [[unlikely]]
      late_ = range.older ? range.older : range.newer;
    --count_;
  }

  block* insertion_point(block const& range) noexcept;

  stream_timeline* timeline_ = nullptr;
  std::size_t count_ = 0;
  block* oldest_ = nullptr;
  block* newest_ = nullptr;
  block* late_ = nullptr; // the range after which the last range that was not the newest was inserted
  size_bins bins_;
  quick_lists quick_;
};

/// All free lists of a shard. Guarded by the lock of the shard.
export class free_lists {
public:
  free_lists();

  /// Makes spare free lists for `streams` new streams, and at least two more, so that of() need not allocate host
  /// memory. Throws std::bad_alloc.
  inline void reserve(std::size_t streams = 0) {
    auto const least = streams + min_spare;
    if (spare_.size() < least) [[unlikely]]
      refill(std::max(least, spare_batch));
  }

  /// Returns the free list of ready ranges, which no stream uses.
  inline free_list& ready() noexcept { return ready_; }
  /// Returns the free list of ranges that several streams use. It also has the ranges of streams for which no spare
  /// free list was left.
  inline free_list& multi_stream() noexcept { return multi_stream_; }
  /// Returns the stream's own free list; null if it has none.
  inline free_list* find(stream_timeline const& timeline) const noexcept {
    for (auto i = timeline.index() & mask_;; i = (i + 1) & mask_) {
      auto* const seen = by_stream_[i];
      if (!seen || seen->timeline_ == &timeline) [[likely]]
        return seen;
    }
  }
  /// Returns the free list for ranges that these streams may still use. Allocates no host memory.
  inline free_list& of(stream_uses const& uses) noexcept {
    if (uses.empty()) return ready_;
    if (uses.size() > 1) [[unlikely]]
      return multi_stream_;
    auto& timeline = *uses.begin()->timeline;
    auto* const found = find(timeline);
    return found ? *found : assign_to(timeline);
  }

  /// Returns the free lists that belong to one stream each, in no order.
  inline std::vector<free_list*> const& single_stream() const noexcept { return single_stream_; }
  template <class Visit> void visit(Visit visitor) {
    visitor(ready_);
    visitor(multi_stream_);
    for (auto* const each : single_stream_) visitor(*each);
  }
  /// Returns the bytes of the largest range on any list; 0 if there is none.
  std::size_t largest() noexcept;

private:
  static constexpr std::size_t min_spare = 2, spare_batch = 4;
  free_list& assign_to(stream_timeline& timeline) noexcept;
  void refill(std::size_t spares);
  void index(free_list& list) noexcept;
  void reclaim() noexcept;

  free_list ready_;
  free_list multi_stream_;
  std::vector<std::unique_ptr<free_list>> lists_;
  std::vector<free_list*> single_stream_;
  std::vector<free_list*> spare_;
  std::vector<free_list*> by_stream_; // hash table with open addressing, at least half empty
  std::size_t mask_;
};

} // namespace gpumem::detail
