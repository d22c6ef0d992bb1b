// The last allocations and frees of a hardened pool, which finds misuse of its blocks.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_history;
import :misuse;
import :std;

namespace gpumem::detail {

/// The last `capacity` allocations and frees. The caller holds the lock of the `hardening` object that owns the
/// history.
export class block_history {
public:
  /// Throws std::bad_alloc.
  explicit block_history(std::size_t capacity) : ring_(capacity) {}

  /// Records an allocation or a free by the calling thread. `stream`: the stream's id.
  void record(block_event::kind what, void const* pointer, std::size_t bytes, std::uint64_t stream) noexcept;

  /// Writes the newest events of blocks that held the address: at most `capacity` events, the oldest of them first.
  /// Returns the number of events written.
  std::size_t newest(void const* address, block_event* into, std::size_t capacity) const noexcept;
  /// Returns all events of blocks that held the address, the oldest first. Throws std::bad_alloc.
  std::vector<block_event> all(void const* address) const;
  /// Returns the newest free of a block that started at `pointer`; null if there is none. If `bytes` is given, skips
  /// blocks of other sizes.
  block_event const* last_free(void const* pointer, std::optional<std::size_t> bytes) const noexcept;

private:
  template <class Visit> void visit_newest_first(Visit visit) const;

  std::vector<block_event> ring_;
  std::uint64_t recorded_ = 0;
};

} // namespace gpumem::detail
