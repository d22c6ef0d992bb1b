// Free ranges by whom they wait for: one stream's, nobody's, or several streams'.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:shelf;
import :block;
import :size_bins;
import :spans;
import :std;
import :tags;
import :timeline;

namespace gpumem::detail {

/// Free ranges of the same order, by size, and, where it is one stream's, from the oldest epoch to the newest; small
/// blocks of that order beside them. Guarded by the lock of the pool that keeps it.
export class shelf {
public:
  /// The one stream that all ranges here wait for; null: none, or several.
  inline timeline* order() const noexcept { return order_; }
  /// No range lies here.
  inline bool empty() const noexcept { return count_ == 0; }
  /// Nor a small block.
  inline bool unused() const noexcept { return empty() && spans_.empty(); }
  inline std::size_t size() const noexcept { return count_; }
  inline size_bins& bins() noexcept { return bins_; }
  inline size_bins const& bins() const noexcept { return bins_; }
  inline class spans& spans() noexcept { return spans_; }
  inline class spans const& spans() const noexcept { return spans_; }
  inline block* oldest() const noexcept { return oldest_; }
  inline block* newest() const noexcept { return newest_; }

  /// What is freed now is newest but for a few that came by another way.
  inline void put(block& range) noexcept {
    link_in_order(range);
    bins_.put(range);
  }
  /// Beside a range of the same epoch that is here.
  inline void put_beside(block& range, block& there) noexcept {
    link_after(range, &there);
    bins_.put(range);
  }
  inline void take(block& range) noexcept {
    unlink(range);
    bins_.take(range);
  }
  /// A range that is here has become larger by what waits for the same streams.
  [[gnu::always_inline]] inline void grow(block& range, tag_set const& by) noexcept {
    bins_.resized(range);
    bool const later = order_ && epoch_of(range) < by.begin()->newest;
    if (!by.empty()) range.tags.join(by);
    if (!later || newest_ == &range) return;
    unlink(range);
    link_in_order(range);
  }

  /// Some range here waits for what the host has not seen complete; `without_evidence`: and which no event covers.
  bool open(bool without_evidence) const noexcept;

  /// Counts a free of the stream that left no evidence; true once in a few: the counts are then to be passed on.
  inline bool count_free(std::size_t bytes, std::size_t most_bytes) noexcept {
    ++unrecorded_frees;
    unrecorded_bytes += bytes;
    return unrecorded_frees >= most_counted || unrecorded_bytes >= most_bytes;
  }
  std::uint32_t unrecorded_frees = 0;
  std::size_t unrecorded_bytes = 0;

private:
  friend class shelves;
  static constexpr std::uint32_t most_counted = 32;
  static inline epoch epoch_of(block const& range) noexcept { return range.tags.begin()->newest; }
  inline void link_in_order(block& range) noexcept {
    bool const newest = !order_ || !newest_ || epoch_of(*newest_) <= epoch_of(range);
    link_after(range, newest ? newest_ : place_before_newer(range));
  }
  inline void link_after(block& range, block* there) noexcept {
    range.older = there;
    range.newer = there ? there->newer : oldest_;
    (there ? there->newer : oldest_) = &range;
    (range.newer ? range.newer->older : newest_) = &range;
    range.place = this;
    ++count_;
  }
  inline void unlink(block& range) noexcept {
    (range.older ? range.older->newer : oldest_) = range.newer;
    (range.newer ? range.newer->older : newest_) = range.older;
    if (late_ == &range) [[unlikely]]
      late_ = range.older ? range.older : range.newer;
    --count_;
  }

  block* place_before_newer(block const& range) noexcept;

  timeline* order_ = nullptr;
  std::size_t count_ = 0;
  block* oldest_ = nullptr;
  block* newest_ = nullptr;
  block* late_ = nullptr; // where the last one was put that was not the newest
  size_bins bins_;
  class spans spans_;
};

/// All shelves of a pool.
export class shelves {
public:
  shelves();

  /// Makes sure that so many streams never seen, and a few, can be given a shelf. Throws std::bad_alloc.
  inline void reserve(std::size_t streams = 0) {
    auto const least = streams + fewest_spare;
    if (spare_.size() < least) [[unlikely]]
      refill(std::max(least, spares_at_once));
  }

  /// Of ranges that nobody uses.
  inline shelf& common() noexcept { return common_; }
  /// Of ranges that several streams use; and of streams that could not be given a shelf.
  inline shelf& mixed() noexcept { return mixed_; }
  /// The stream's own, or null.
  inline shelf* find(timeline const& order) const noexcept {
    for (auto i = order.index() & mask_;; i = (i + 1) & mask_) {
      auto* const seen = by_stream_[i];
      if (!seen || seen->order_ == &order) [[likely]]
        return seen;
    }
  }
  /// Where a range of this order belongs. Allocates nothing.
  inline shelf& of(tag_set const& tags) noexcept {
    if (tags.empty()) return common_;
    if (tags.size() > 1) [[unlikely]]
      return mixed_;
    auto& order = *tags.begin()->order;
    auto* const found = find(order);
    return found ? *found : give_to(order);
  }

  /// Those of one stream each, in no order.
  inline std::vector<shelf*> const& own() const noexcept { return own_; }
  template <class Visit> void visit(Visit visitor) {
    visitor(common_);
    visitor(mixed_);
    for (auto* const each : own_) visitor(*each);
  }

private:
  static constexpr std::size_t fewest_spare = 2, spares_at_once = 4;
  shelf& give_to(timeline& order) noexcept;
  void refill(std::size_t spares);
  void index(shelf& one) noexcept;
  void reclaim() noexcept;

  shelf common_;
  shelf mixed_;
  std::vector<std::unique_ptr<shelf>> all_;
  std::vector<shelf*> own_;
  std::vector<shelf*> spare_;
  std::vector<shelf*> by_stream_; // open addressing, half empty at least
  std::size_t mask_;
};

} // namespace gpumem::detail
