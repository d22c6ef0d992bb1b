// The chunks that a pool has from its upstream, and the sums of their bytes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:chunk_list;
import :block;
import :shard_roles;
import :std;

namespace gpumem::detail {

/// A pool's chunks, and the limit on their bytes. Changes need the locks of all shards. Reads need the lock of any
/// shard.
export class chunk_list {
public:
  /// `limit`: the most bytes that may be reserved; 0: no limit. `chunk_bytes`: the size of a chunk, unless the request
  /// is larger; 0: growth() chooses the size.
  explicit chunk_list(std::size_t limit, std::size_t chunk_bytes = 0) noexcept
      : limit_{limit}, whole_limit_{limit}, chunk_bytes_{chunk_bytes} {}

  /// Returns the size of the next chunk, for a request of `need` bytes by a shard that has `has` bytes. It is usually
  /// more than `need`, so that growth is rare. It stays within the limit. Returns 0 if `need` exceeds headroom().
  GPUMEM_REQUIRES_SHARED(all_shards) std::size_t growth(std::size_t need, std::size_t has) const noexcept;

  /// Adds a chunk that the upstream has given; `reserved` of its bytes have memory. Throws std::bad_alloc.
  GPUMEM_REQUIRES(all_shards) chunk& add(void* base, std::size_t bytes, std::size_t reserved);
  GPUMEM_REQUIRES(all_shards) inline chunk& add(void* base, std::size_t bytes) { return add(base, bytes, bytes); }
  /// Removes a chunk from the list, and returns its description. The chunk's bytes count against the limit until
  /// end_release().
  GPUMEM_REQUIRES(all_shards) chunk begin_release(chunk const& chunk) noexcept;
  /// Counts bytes of pages that are being unmapped in a chunk that stays. They count against the limit until
  /// end_release().
  GPUMEM_REQUIRES(all_shards) void begin_release(std::size_t bytes) noexcept {
    reserved_ -= bytes;
    releasing_ += bytes;
    reserved_by_all_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  GPUMEM_REQUIRES(all_shards) void end_release(std::size_t bytes) noexcept { releasing_ -= bytes; }
  /// Counts bytes that the upstream has given.
  GPUMEM_REQUIRES(all_shards) void add_reserved(std::size_t bytes) noexcept;
  /// Removes a chunk from the list. Changes no counts.
  GPUMEM_REQUIRES(all_shards) void erase(chunk const& chunk) noexcept;

  GPUMEM_REQUIRES_SHARED(all_shards) inline std::size_t reserved() const noexcept { return reserved_; }
  GPUMEM_REQUIRES_SHARED(all_shards) inline std::size_t releasing() const noexcept { return releasing_; }
  GPUMEM_REQUIRES_SHARED(all_shards) inline std::size_t peak() const noexcept { return peak_; }
  GPUMEM_REQUIRES(all_shards) inline void reset_peak() noexcept { peak_ = reserved_ + releasing_; }
  /// Returns all bytes that the upstream has given since the pool was made, including those that have gone back.
  GPUMEM_REQUIRES_SHARED(all_shards) inline std::size_t reserved_in_all() const noexcept { return reserved_in_all_; }
  /// Returns the bytes that all pools of the process have reserved now. Any thread.
  static std::size_t reserved_by_all_pools() noexcept { return reserved_by_all_.load(std::memory_order_relaxed); }
  /// Returns the limit, less the bytes outside the pool; 0 if there is none. Any thread.
  inline std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  GPUMEM_REQUIRES(all_shards) void set_limit(std::size_t bytes) noexcept;
  /// Returns the most bytes that the pool may have reserved if `more` further bytes outside it count; nullopt if these
  /// exceed the limit.
  GPUMEM_REQUIRES_SHARED(all_shards) std::optional<std::size_t> room_beside(std::size_t more) const noexcept;
  /// Counts bytes that another source has, or is about to give, toward the limit.
  GPUMEM_REQUIRES(all_shards) void add_outside(std::size_t bytes) noexcept;
  GPUMEM_REQUIRES(all_shards) void remove_outside(std::size_t bytes) noexcept;
  /// Returns the most bytes that may be reserved: the limit, rounded down to whole granules of 256 bytes.
  inline std::size_t max_reserved() const noexcept {
    return (limit() ? limit() : std::numeric_limits<std::size_t>::max()) / granule * granule;
  }
  /// Returns the bytes that may still be reserved: the limit less the reserved bytes and those being released.
  GPUMEM_REQUIRES_SHARED(all_shards) std::size_t headroom() const noexcept;
  /// Returns whether less than a quarter of the limit is left. Returns false without a limit: only a failed request
  /// shows how much memory the device has left.
  GPUMEM_REQUIRES_SHARED(all_shards) bool near_limit() const noexcept;
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool empty() const noexcept { return chunks_.empty(); }

  /// Returns the chunk that holds the address; null if none does.
  GPUMEM_REQUIRES_SHARED(all_shards) chunk* find_containing(void const* pointer) const noexcept;
  /// Returns the lowest chunk that ends above the address; null if there is none.
  GPUMEM_REQUIRES_SHARED(all_shards) chunk const* first_ending_above(std::uintptr_t address) const noexcept;
  template <class Visit> GPUMEM_REQUIRES_SHARED(all_shards) void visit(Visit visitor) const {
    for (auto const& each : chunks_) visitor(*each);
  }

  /// Returns the largest chunk that has no live block and for which `may(chunk)` is true; null if there is none. Leaves
  /// out a chunk if fewer than `keep` bytes would remain reserved without it.
  template <class May> GPUMEM_REQUIRES_SHARED(all_shards) chunk* largest_idle(std::size_t keep, May may) const {
    chunk* best = nullptr;
    for (auto const& each : chunks_) {
      if (each->live_blocks > 0 || reserved_ - each->bytes < keep || (best && each->bytes <= best->bytes)) continue;
      if (may(*each)) best = each.get();
    }
    return best;
  }

private:
  static inline constinit std::atomic<std::size_t> reserved_by_all_{0};
  std::vector<std::unique_ptr<chunk>> chunks_ GPUMEM_GUARDED_BY(all_shards); // sorted by address
  std::atomic<std::size_t> limit_;
  std::size_t whole_limit_ GPUMEM_GUARDED_BY(all_shards);
  std::size_t outside_ GPUMEM_GUARDED_BY(all_shards) = 0;
  std::size_t const chunk_bytes_;
  std::size_t reserved_ GPUMEM_GUARDED_BY(all_shards) = 0;
  std::size_t releasing_ GPUMEM_GUARDED_BY(all_shards) = 0;
  std::size_t peak_ GPUMEM_GUARDED_BY(all_shards) = 0;
  std::size_t reserved_in_all_ GPUMEM_GUARDED_BY(all_shards) = 0;
};

} // namespace gpumem::detail
