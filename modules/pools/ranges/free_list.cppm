// A free list of a shard. Each stream has one, with the free ranges that it alone still uses. Two further lists hold
// the free ranges that no stream uses, and those that several streams use.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:free_list;
import :block;
import :quick_lists;
import :size_bins;
import :std;
import :stream_timeline;
import :stream_uses;
import :tuning;

namespace gpumem::detail {

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
  /// Inserts a range after `there`, a range of the same epoch on this list.
  inline void insert_beside(block& range, block& there) noexcept {
    link_after(range, &there);
    bins_.insert(range);
  }
  inline void remove(block& range) noexcept {
    unlink(range);
    bins_.remove(range);
  }
  /// Updates the list after one of its ranges has grown by other memory. `by`: the uses of that memory, by the same
  /// streams as the uses of the range.
  [[gnu::always_inline]] inline void grow(block& range, stream_uses const& by) noexcept {
    bins_.resized(range);
    bool const later = timeline_ && epoch_of(range) < by.begin()->newest;
    if (!by.empty()) range.uses.join(by);
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
    return unrecorded_frees >= tuning::frees_per_batch || unrecorded_bytes >= threshold_bytes;
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
  inline void link_after(block& range, block* there) noexcept {
    range.older = there;
    range.newer = there ? there->newer : oldest_;
    (there ? there->newer : oldest_) = &range;
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

} // namespace gpumem::detail
