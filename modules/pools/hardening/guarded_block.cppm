// A block of a hardened pool: the user's bytes, and the guards around them.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:guarded_block;
import :block;
import :fill_pattern;
import :std;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

/// The size of the guards around each block, and the bytes of a block that are poisoned and checked.
export struct guard_layout {
  std::size_t guard = 0; ///< a multiple of the granule
  std::size_t poison =
      0; ///< blocks up to this size are poisoned in full; of larger ones half this many bytes at each end

  /// Returns the bytes from the start of the engine's block to the user's bytes.
  inline std::size_t front(std::size_t alignment) const noexcept {
    auto const step = std::max(alignment, granule);
    return (guard + step - 1) & ~(step - 1);
  }
  /// Returns the bytes to allocate from the engine. Does not overflow for any allowed request.
  inline std::size_t total(std::size_t bytes, std::size_t alignment) const noexcept {
    return front(alignment) + (bytes + granule - 1) / granule * granule + guard;
  }
};

/// The overwritten bytes around and in a block.
export struct corruption_report {
  corruption underrun;   ///< offsets from the start of the lower guard
  corruption overrun;    ///< offsets from the end of the user's bytes
  corruption after_free; ///< offsets from the start of the user's bytes
  inline bool any() const noexcept { return underrun.bytes + overrun.bytes + after_free.bytes > 0; }
};

/// The record of a block. It belongs to the block's user first, then to the thread that frees it, then to the
/// quarantine.
export struct guarded_block {
  char* user = nullptr;
  std::size_t bytes = 0;               ///< requested
  std::size_t front = 0;               ///< bytes before `user`; the guard is the last of them
  std::size_t allocated = 0;           ///< bytes of the engine's block: front, user's bytes and upper guard
  std::uint64_t stream = 0;            ///< id of the stream it was allocated on
  stream_timeline* timeline = nullptr; ///< of that stream
  std::uint64_t freed_on = 0;          ///< id of the stream it was freed on
  stream_use granted_use;              ///< the fill at the allocation, if it may end after `uses`; or none
  stream_uses uses;                    ///< uses that must be complete before the host reads the block
  bool live = false;
  bool has_recorded_uses = false;  ///< uses on other streams were recorded
  bool only_guards_filled = false; ///< the allocation filled only the guards
  bool guards_filled = false;      ///< the guards have the pattern
  bool poisoned = false;           ///< the user's bytes are poisoned
  bool needs_poison = false;       ///< the quarantine poisons them when all uses are complete
  corruption_report report;
  guarded_block* next = nullptr; ///< in a list of the quarantine
  std::size_t staged = 0;        ///< offset of the copy of its bytes in the staging memory

  inline void* base() const noexcept { return user - front; }
  inline bool holds(void const* pointer) const noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(base()) < allocated;
  }
  /// Returns whether the host has seen every use complete.
  inline bool complete() const noexcept {
    return uses.completed() && (!granted_use.timeline || granted_use.completed());
  }
  inline std::size_t tail() const noexcept { return allocated - front - bytes; }

  /// Returns all bytes that are filled and checked, with the guards: one run, or one for each end.
  std::array<byte_run, 2> all(guard_layout const& of) const noexcept;
  /// inside() returns the user's bytes of these alone, guards() the guards alone.
  std::array<byte_run, 2> inside(guard_layout const& of) const noexcept;
  std::array<byte_run, 2> guards(guard_layout const& of) const noexcept;

  /// Checks copies of the runs of all(), which lie one after the other at `seen`, and sets `report`.
  void check(guard_layout const& of, char const* seen) noexcept;
  /// Checks the bytes in their place, and sets `report`.
  void check_in_place(guard_layout const& of) noexcept;

private:
  struct pieces {
    char const *front_guard, *begin, *end, *tail_guard;
  };
  void check(pieces const& seen, guard_layout const& of) noexcept;
};

} // namespace gpumem::detail
