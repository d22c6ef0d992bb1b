// A block of a hardened pool: the user's bytes, and the guards around them.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:guarded_block;
import :block;
import :fill_pattern;
import :pool_parts;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// The overwritten bytes around and in a block.
export struct corruption_report {
  corruption underrun;   ///< offsets from the start of the lower guard
  corruption overrun;    ///< offsets from the end of the user's bytes
  corruption after_free; ///< offsets from the start of the user's bytes
  inline bool any() const noexcept { return underrun.bytes + overrun.bytes + after_free.bytes > 0; }
};

/// The record of a block. While the block is live, the record changes under the lock of `hardening`, the layer that
/// guards blocks. Afterwards the record belongs to the thread that frees the block, then to the quarantine.
export struct guarded_block {
  char* user = nullptr;
  std::size_t bytes = 0;               ///< requested by the user
  std::size_t front = 0;               ///< bytes before `user`; the lower guard is the end of them
  std::size_t allocated = 0;           ///< bytes of the engine's block: front, user's bytes and upper guard
  std::uint64_t stream = 0;            ///< id of the stream on which the block was allocated
  stream_timeline* timeline = nullptr; ///< of the stream on which the block was allocated
  std::uint64_t freed_on = 0;          ///< id of the stream on which the block was freed
  stream_use granted_use;              ///< the fill at the allocation; empty if a use in `uses` comes after it
  stream_uses uses;                    ///< uses that must be complete before the host reads the block
  bool live = false;
  bool has_recorded_uses = false;  ///< record_use() declared uses on other streams
  bool only_guards_filled = false; ///< the allocation filled only the guards
  bool guards_filled = false;      ///< the guards have their pattern
  bool poisoned = false;           ///< the user's bytes are poisoned
  bool needs_poison = false;       ///< the quarantine will poison the user's bytes when all uses are complete
  corruption_report report;
  guarded_block* next = nullptr; ///< the next block in a list of the quarantine
  std::size_t staged = 0; ///< offset in the quarantine's staging memory, to which its bytes are copied for the check

  inline void* base() const noexcept { return user - front; }
  inline bool holds(void const* pointer) const noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(base()) < allocated;
  }
  /// Returns whether the host has seen every use, and the fill at the allocation, complete.
  inline bool complete() const noexcept {
    return uses.completed() && (!granted_use.timeline || granted_use.completed());
  }
  inline std::size_t tail() const noexcept { return allocated - front - bytes; }

  /// Returns all bytes that are filled and checked, guards included: as one run, or as one run for each end of a block
  /// that is checked only at its ends.
  std::array<byte_run, 2> all(guard_layout const& of) const noexcept;
  /// Returns those of the user's bytes that are filled and checked, without the guards.
  std::array<byte_run, 2> inside(guard_layout const& of) const noexcept;
  std::array<byte_run, 2> guards(guard_layout const& of) const noexcept;

  /// Checks the bytes at `seen`, which are copies of the runs of all(), one after the other. Sets `report`.
  void check(guard_layout const& of, char const* seen) noexcept;
  /// Checks the block's bytes in the block itself, and sets `report`. The host must be able to read them.
  void check_in_place(guard_layout const& of) noexcept;

private:
  struct pieces {
    char const *front_guard, *begin, *end, *tail_guard;
  };
  void check(pieces const& seen, guard_layout const& of) noexcept;
};

} // namespace gpumem::detail
