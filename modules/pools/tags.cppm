// The order of a range of memory: which streams may still use it, and up to which of their epochs.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:tags;
import :std;
import :timeline;

namespace gpumem::detail {

/// A use of memory on a stream, up to an epoch.
export struct tag {
  timeline* order = nullptr;
  epoch newest = 0;

  /// The host has seen the use complete.
  inline bool completed() const noexcept { return order->completed(newest); }
  /// Some event covers the use, open or complete; only then can polling complete it.
  inline bool has_evidence() const noexcept { return completed() || order->newest_evidence() >= newest; }
  /// It is open, and polling can complete it.
  inline bool may_complete() const noexcept { return !completed() && order->can_complete(newest); }
};

/// At most four tags, one for each stream; the newest epoch stands for the older ones. No tag: nobody uses the memory.
/// Guarded by the lock of the pool that keeps it.
export class tag_set {
public:
  static constexpr std::size_t most = 4;

  tag_set() = default;
  explicit inline tag_set(tag const& only) noexcept { assign(only); }

  inline tag const* begin() const noexcept { return tags_.data(); }
  inline tag const* end() const noexcept { return tags_.data() + size_; }
  inline bool empty() const noexcept { return size_ == 0; }
  inline std::size_t size() const noexcept { return size_; }
  inline void clear() noexcept { size_ = 0; }
  /// One use and no other.
  inline void assign(tag const& only) noexcept {
    tags_[0] = only;
    size_ = 1;
  }

  tag const* find(timeline const& order) const noexcept;

  /// Adds a use; false, and nothing changed, if that would be a fifth stream.
  inline bool add(tag const& use) noexcept {
    if (size_ > 0) [[unlikely]]
      return add_to_others(use);
    assign(use);
    return true;
  }
  /// Adds the uses of another set; false, and nothing changed, if that would make more than four streams.
  inline bool join(tag_set const& other) noexcept {
    if (other.size_ == 1 && size_ == 1 && other.tags_[0].order == tags_[0].order) [[likely]] {
      tags_[0].newest = std::max(tags_[0].newest, other.tags_[0].newest);
      return true;
    }
    return other.size_ == 0 || join_many(other);
  }
  void remove(timeline const& order) noexcept;
  /// Drops what the host has seen complete.
  void prune() noexcept;

  /// The host has seen every use complete.
  bool completed() const noexcept;
  /// Both name the same streams, at whatever epochs.
  inline bool same_streams(tag_set const& other) const noexcept {
    if (size_ != other.size_) return false;
    return size_ == 0 || (size_ == 1 ? tags_[0].order == other.tags_[0].order : same_many(other));
  }

private:
  bool add_to_others(tag const& use) noexcept;
  bool join_many(tag_set const& other) noexcept;
  bool same_many(tag_set const& other) const noexcept;

  std::size_t size_ = 0; // before the tags: with the first of them on one cache line of a block
  std::array<tag, most> tags_{};
};

} // namespace gpumem::detail
