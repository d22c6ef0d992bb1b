// The free lists of a shard, by stream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:free_lists;
import :free_list;
import :std;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

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
  void index(free_list& one) noexcept;
  void reclaim() noexcept;

  free_list ready_;
  free_list multi_stream_;
  std::vector<std::unique_ptr<free_list>> all_;
  std::vector<free_list*> single_stream_;
  std::vector<free_list*> spare_;
  std::vector<free_list*> by_stream_; // hash table with open addressing, at least half empty
  std::size_t mask_;
};

} // namespace gpumem::detail
