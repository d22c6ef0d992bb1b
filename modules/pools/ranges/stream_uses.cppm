// The uses of a block of memory: which streams may still use it, and up to which epoch of each stream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_uses;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// A use of memory by work on a stream. It ends in an epoch, which numbers a section of the stream's work.
export struct stream_use {
  stream_timeline* timeline = nullptr;
  epoch newest = 0;

  /// Returns whether the host has seen the use complete.
  inline bool completed() const noexcept { return timeline->completed(newest); }
  /// Returns whether an event was recorded after the use, or the host has seen the use complete. Otherwise polls of
  /// events cannot show that the use is complete.
  inline bool has_event() const noexcept { return completed() || timeline->newest_recorded() >= newest; }
  /// Returns whether the host has not seen the use complete, but polls of events can show it.
  inline bool may_complete() const noexcept { return !completed() && timeline->can_complete(newest); }
};

/// The uses of a block: at most four, one for each stream. A use has the newest epoch in which its stream used the
/// block. A block without uses is ready for all streams. Guarded by the lock that guards the block: that of its shard,
/// or that of a thread cache while the block is there.
export class stream_uses {
public:
  static constexpr std::size_t max_streams = 4;

  stream_uses() = default;
  explicit inline stream_uses(stream_use const& only) noexcept { assign(only); }

  inline stream_use const* begin() const noexcept { return uses_.data(); }
  inline stream_use const* end() const noexcept { return uses_.data() + size_; }
  inline bool empty() const noexcept { return size_ == 0; }
  inline std::size_t size() const noexcept { return size_; }
  inline void clear() noexcept { size_ = 0; }
  /// Replaces all uses by `only`.
  inline void assign(stream_use const& only) noexcept {
    uses_[0] = only;
    size_ = 1;
  }

  stream_use const* find(stream_timeline const& timeline) const noexcept;

  /// Adds a use. Returns false, and changes nothing, if that would be a fifth stream.
  inline bool add(stream_use const& use) noexcept {
    if (size_ > 0) [[unlikely]]
      return add_to_others(use);
    assign(use);
    return true;
  }
  /// Adds the uses of another set. Returns false, and changes nothing, if that would make more than four streams.
  inline bool join(stream_uses const& other) noexcept {
    if (other.size_ == 1 && size_ == 1 && other.uses_[0].timeline == uses_[0].timeline) [[likely]] {
      uses_[0].newest = std::max(uses_[0].newest, other.uses_[0].newest);
      return true;
    }
    return other.size_ == 0 || join_many(other);
  }
  void remove(stream_timeline const& timeline) noexcept;
  /// Drops uses that the host has seen complete.
  void prune() noexcept;

  /// Returns whether the host has seen every use complete.
  bool completed() const noexcept;
  /// Returns whether both sets have the same streams; their epochs may differ.
  inline bool same_streams(stream_uses const& other) const noexcept {
    if (size_ != other.size_) return false;
    return size_ == 0 || (size_ == 1 ? uses_[0].timeline == other.uses_[0].timeline : same_many(other));
  }

private:
  bool add_to_others(stream_use const& use) noexcept;
  bool join_many(stream_uses const& other) noexcept;
  bool same_many(stream_uses const& other) const noexcept;

  std::size_t size_ = 0; // before the uses, so that it shares a cache line of the block with the first use
  std::array<stream_use, max_streams> uses_{};
};

} // namespace gpumem::detail
