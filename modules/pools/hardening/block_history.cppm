// What a hardened pool remembers of its allocations and frees.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_history;
import :misuse;
import :std;

namespace gpumem::detail {

/// The last events, as many as there is room for. Guarded by the lock of the pool that keeps it.
export class block_history {
public:
  /// Throws std::bad_alloc.
  explicit block_history(std::size_t capacity) : ring_(capacity) {}

  /// By the calling thread.
  void record(block_event::kind what, void const* pointer, std::size_t bytes, std::uint64_t stream) noexcept;

  /// Writes the newest events of the blocks in which the address lay, the oldest of them first; how many those are.
  std::size_t newest(void const* address, block_event* into, std::size_t capacity) const noexcept;
  /// All of them. Throws std::bad_alloc.
  std::vector<block_event> all(void const* address) const;
  /// The newest free of a block that began there; only of so many bytes, if given. Or null.
  block_event const* last_free(void const* pointer, std::optional<std::size_t> bytes) const noexcept;

private:
  template <class Visit> void visit_newest_first(Visit visit) const;

  std::vector<block_event> ring_;
  std::uint64_t recorded_ = 0;
};

} // namespace gpumem::detail
