// The order of a range of memory: which streams may still use it, and up to which of their epochs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <array>
#include <cstddef>
export module gpumem:tags;
import :timeline;

namespace gpumem::detail {

/// A use of memory on a stream, up to an epoch. Precise: evidence was recorded inside the call that ended the use.
export struct tag {
  timeline* order = nullptr;
  epoch newest = 0;
  bool precise = false;

  /// The host has seen the use complete.
  inline bool completed() const noexcept { return order->completed(newest); }
  /// Some event covers the use, open or complete; only then can polling complete it.
  inline bool has_evidence() const noexcept { return completed() || order->newest_evidence() >= newest; }
};

/// At most four tags, one for each stream; the newest epoch stands for the older ones. No tag: nobody uses the memory.
/// Guarded by the lock of the pool that keeps it.
export class tag_set {
public:
  static constexpr std::size_t most = 4;

  tag_set() = default;
  explicit tag_set(tag const& only) noexcept { add(only); }

  tag const* begin() const noexcept { return tags_.data(); }
  tag const* end() const noexcept { return tags_.data() + size_; }
  inline bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  void clear() noexcept { size_ = 0; }

  tag const* find(timeline const& order) const noexcept;

  /// Adds a use; false, and nothing changed, if that would be a fifth stream.
  bool add(tag const& use) noexcept;
  /// Adds the uses of another set; false, and nothing changed, if that would make more than four streams.
  bool join(tag_set const& other) noexcept;
  void remove(timeline const& order) noexcept;
  /// Drops what the host has seen complete.
  void prune() noexcept;

  /// The host has seen every use complete.
  bool completed() const noexcept;
  /// Both name the same streams, at whatever epochs.
  bool same_streams(tag_set const& other) const noexcept;

private:
  std::array<tag, most> tags_{};
  std::size_t size_ = 0;
};

} // namespace gpumem::detail
