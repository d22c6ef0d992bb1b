// The blocks of a hardened pool: their guards and patterns, their history, and the blocks by address.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <map>
export module gpumem:guarded_blocks;
import :block;
import :misuse;
import :pool_parts;
import :pool_reports;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem::detail {

/// Bytes that look wrong to a person who debugs: as numbers they are huge, and as pointers invalid. `guard` fills
/// guards and new blocks, `poison` fills freed blocks.
export enum class fill_pattern : unsigned char { guard = 0xfa, poison = 0xdf };

/// Bytes of memory, of a device or of the host.
export struct byte_run {
  char* data = nullptr;
  std::size_t bytes = 0;
};

/// Enqueues a write of the pattern on the stream. Returns false if the driver refuses. `key` must have the stream's
/// handle, and the stream must not capture a graph.
export bool fill(stream_key const& key, byte_run run, fill_pattern pattern) noexcept;
/// Writes the pattern on the host before it returns.
export void fill_by_host(byte_run run, fill_pattern pattern) noexcept;
/// Enqueues a copy of `run` on the stream, to the page-locked memory at `buffer`. Returns false if the driver refuses.
export bool read_back(stream_key const& key, byte_run run, char* buffer) noexcept;

/// The number of bytes that differ from a pattern, and the offsets of the first and the last of them.
export struct corruption {
  std::size_t bytes = 0;
  std::size_t first = 0;
  std::size_t last = 0;
};
export corruption compare(char const* data, std::size_t bytes, fill_pattern pattern) noexcept;

/// The last `capacity` allocations and frees. The caller holds the lock of the `hardening` object that owns the
/// history.
export class block_history {
public:
  /// Throws std::bad_alloc.
  explicit block_history(std::size_t capacity) : ring_(capacity) {}

  /// Records an allocation or a free by the calling thread. `stream`: the stream's id.
  void record(block_event::kind kind, void const* pointer, std::size_t bytes, std::uint64_t stream) noexcept;

  /// Writes the newest events of blocks that held the address: at most `capacity` events, the oldest of them first.
  /// Returns the number of events written.
  std::size_t newest(void const* address, block_event* events, std::size_t capacity) const noexcept;
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

/// The overwritten bytes around and in a block.
export struct corruption_report {
  corruption underrun;   ///< offsets from the start of the lower guard
  corruption overrun;    ///< offsets from the end of the user's bytes
  corruption after_free; ///< offsets from the start of the user's bytes
  inline bool any() const noexcept { return underrun.bytes + overrun.bytes + after_free.bytes > 0; }
};

/// The record of a block. While the block is live, the record changes under the lock of `hardening`. Afterwards the
/// record belongs to the thread that frees the block, then to the quarantine.
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
  std::array<byte_run, 2> all(guard_layout const& layout) const noexcept;
  /// Returns those of the user's bytes that are filled and checked, without the guards.
  std::array<byte_run, 2> inside(guard_layout const& layout) const noexcept;
  std::array<byte_run, 2> guards(guard_layout const& layout) const noexcept;

  /// Checks the bytes at `data`, which are copies of the runs of all(), one after the other. Sets `report`.
  void check(guard_layout const& layout, char const* data) noexcept;
  /// Checks the block's bytes in the block itself, and sets `report`. The host must be able to read them.
  void check_in_place(guard_layout const& layout) noexcept;

private:
  struct pieces {
    char const *front_guard, *begin, *end, *tail_guard;
  };
  void check(pieces const& pieces, guard_layout const& layout) noexcept;
};

/// The blocks that users have, and freed blocks in quarantine. Knows which pointers users may free, and explains wrong
/// frees. Guarded by the lock of the `hardening` that owns it.
export class guarded_blocks {
public:
  /// `events`: the number of allocations and frees that the history keeps. Throws std::bad_alloc.
  explicit guarded_blocks(std::size_t events) : history_{events} {}

  /// Adds a block, which is not live yet. Throws std::bad_alloc.
  void add(std::unique_ptr<guarded_block> guarded);
  /// Makes an added block live, so that it can be freed. An allocation calls this last: until then a free of the
  /// address is a misuse.
  void make_live(guarded_block& fresh) noexcept;
  /// Ends the life of the block that starts at the address, and returns it; null if no live block of this size starts
  /// there. `stream`: the id of the stream that frees it. If several threads free a block at once, one of them gets it.
  guarded_block* end_life(void const* pointer, std::optional<std::size_t> bytes, std::uint64_t stream) noexcept;
  /// Removes a block that goes back to the pool's engine, and destroys its record.
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
  void amend(statistics& statistics) const noexcept;

private:
  std::map<std::uintptr_t, std::unique_ptr<guarded_block>> blocks_; // by the address that the user got
  block_history history_;
  std::size_t live_ = 0; // bytes
  std::size_t peak_live_ = 0;
  std::uint64_t allocations_ = 0;
  std::uint64_t frees_ = 0;
};

} // namespace gpumem::detail
