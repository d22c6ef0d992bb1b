// A block of a hardened pool: what its user has, and the guards around it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:guarded_block;
import :block;
import :fill_pattern;
import :std;
import :stream_uses;

namespace gpumem::detail {

/// How much lies around a block, and how much of it is looked at; bytes.
export struct guard_layout {
  std::size_t guard = 0;  ///< a multiple of the granule
  std::size_t poison = 0; ///< most of a block; of a larger one half of this at each end

  /// From what the engine grants to what the user gets.
  inline std::size_t front(std::size_t alignment) const noexcept {
    auto const step = std::max(alignment, granule);
    return (guard + step - 1) & ~(step - 1);
  }
  /// Never overflows for what a request may be.
  inline std::size_t total(std::size_t bytes, std::size_t alignment) const noexcept {
    return front(alignment) + (bytes + granule - 1) / granule * granule + guard;
  }
};

/// What was found around and in a block.
export struct corruption_report {
  corruption underrun;   ///< counted from the guard's begin
  corruption overrun;    ///< from the block's end
  corruption after_free; ///< from its begin
  inline bool any() const noexcept { return underrun.bytes + overrun.bytes + after_free.bytes > 0; }
};

/// Changes hands: its user's, then that of the thread that frees it, then the quarantine's.
export struct guarded_block {
  char* user = nullptr;
  std::size_t bytes = 0;      ///< requested
  std::size_t front = 0;      ///< before them; of that the guard is the end
  std::size_t allocated = 0;  ///< by the engine: all of it
  std::uint64_t stream = 0;   ///< id of the one that it was granted to
  std::uint64_t freed_on = 0; ///< id
  stream_use granted_use;     ///< its fill at the grant, where that may not be over when `uses` is; or none
  stream_uses uses;           ///< what must be over before the host looks at it
  bool live = false;
  bool has_recorded_uses = false;  ///< uses on other streams were recorded
  bool only_guards_filled = false; ///< only they were filled at the grant
  bool guards_filled = false;      ///< the guards are filled
  bool poisoned = false;           ///< so are the bytes
  bool needs_poison = false;       ///< they will be, once complete
  corruption_report report;
  guarded_block* next = nullptr; ///< in the quarantine
  std::size_t staged = 0;        ///< where its bytes were copied to

  inline void* base() const noexcept { return user - front; }
  inline bool holds(void const* pointer) const noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(base()) < allocated;
  }
  /// The host has seen every use complete.
  inline bool complete() const noexcept {
    return uses.completed() && (!granted_use.timeline || granted_use.completed());
  }
  inline std::size_t tail() const noexcept { return allocated - front - bytes; }

  /// What is filled and looked at: bytes and guards, one run or one for each end.
  std::array<byte_run, 2> all(guard_layout const& of) const noexcept;
  /// The bytes alone, and the guards alone.
  std::array<byte_run, 2> inside(guard_layout const& of) const noexcept;
  std::array<byte_run, 2> guards(guard_layout const& of) const noexcept;

  /// Compares the bytes of the runs of `all`, which lie one behind the other.
  void check(guard_layout const& of, char const* seen) noexcept;
  /// The same where they are.
  void check_in_place(guard_layout const& of) noexcept;

private:
  struct pieces {
    char const *front_guard, *begin, *end, *tail_guard;
  };
  void check(pieces const& seen, guard_layout const& of) noexcept;
};

} // namespace gpumem::detail
