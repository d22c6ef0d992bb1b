// The blocks of a hardened pool by address, and their history and counts.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <map>
export module gpumem:guarded_blocks;
import :block_history;
import :guarded_block;
import :misuse;
import :pool_reports;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// The blocks that users have, and freed blocks in quarantine, which keeps them from reuse. Knows which pointers users
/// may free, and explains wrong frees. Guarded by the lock of the `hardening` that owns it.
export class guarded_blocks {
public:
  /// `events`: the number of allocations and frees that the history keeps. Throws std::bad_alloc.
  explicit guarded_blocks(std::size_t events) : history_{events} {}

  /// Adds a block, which is not live yet. Throws std::bad_alloc.
  void add(std::unique_ptr<guarded_block> made);
  /// Makes an added block live, so that it can be freed. An allocation calls this last: until then a free of the
  /// address is a misuse.
  void make_live(guarded_block& fresh) noexcept;
  /// Ends the life of the block that starts at the address, and returns it; null if no live block of this size starts
  /// there. `stream`: the id of the stream that frees it. If several threads free a block at once, one of them gets it.
  guarded_block* end_life(void const* pointer, std::optional<std::size_t> bytes, std::uint64_t stream) noexcept;
  /// Removes a block that goes back to the pool's engine (the pool without the hardening), and destroys its record.
  void remove(guarded_block const& outgoing) noexcept;

  /// Returns the block in which the address lies, in the user's bytes or in the guards; null if there is none.
  guarded_block* find_containing(void const* pointer) noexcept;
  /// Returns the live block whose user's bytes start at the address; null if there is none.
  guarded_block* find_live(void const* pointer) noexcept;
  /// Counts the live blocks, and describes the largest. Throws std::bad_alloc.
  live_blocks all_live() const;
  inline block_history const& history() const noexcept { return history_; }

  /// Explains why a pointer cannot be freed with this size, or with any size.
  misuse explain(void const* pointer, std::optional<std::size_t> bytes) noexcept;

  inline std::uint64_t frees() const noexcept { return frees_; }
  inline void reset_peak() noexcept { peak_live_ = live_; }
  /// Replaces the engine's numbers of live bytes and calls, which include guards and quarantine, by those of the users.
  void amend(statistics& seen) const noexcept;

private:
  std::map<std::uintptr_t, std::unique_ptr<guarded_block>> blocks_; // by the address that the user got
  block_history history_;
  std::size_t live_ = 0; // bytes
  std::size_t peak_live_ = 0;
  std::uint64_t allocations_ = 0;
  std::uint64_t frees_ = 0;
};

} // namespace gpumem::detail
