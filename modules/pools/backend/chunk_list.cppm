// The chunks that a pool has drawn from its upstream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:chunk_list;
import :block;
import :chunk;
import :std;

namespace gpumem::detail {

/// A pool's chunks. Guarded by the lock of the pool that keeps it.
export class chunk_list {
public:
  /// `limit`: most bytes that may be reserved, 0 for none.
  explicit chunk_list(std::size_t limit) noexcept : limit_{limit} {}

  /// How much to draw for a request of `need` bytes by a shard that has so much: more, so that growth is rare, but
  /// never beyond the limit; 0 where even the request is beyond it.
  std::size_t growth(std::size_t need, std::size_t has) const noexcept;

  /// Throws std::bad_alloc.
  chunk& add(void* base, std::size_t bytes);
  /// Takes it out; what is leaving still counts against the limit until it has left.
  chunk begin_release(chunk const& which) noexcept;
  /// Pages of a chunk.
  void begin_release(std::size_t bytes) noexcept {
    reserved_ -= bytes;
    releasing_ += bytes;
  }
  void end_release(std::size_t bytes) noexcept { releasing_ -= bytes; }
  /// So many bytes more in a chunk.
  void add_reserved(std::size_t bytes) noexcept;
  /// A chunk that is empty.
  void erase(chunk const& which) noexcept;

  inline std::size_t reserved() const noexcept { return reserved_; }
  inline std::size_t releasing() const noexcept { return releasing_; }
  inline std::size_t peak() const noexcept { return peak_; }
  /// Any thread.
  inline std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  void set_limit(std::size_t bytes) noexcept { limit_.store(bytes, std::memory_order_relaxed); }
  /// The most that may be reserved, in granules.
  inline std::size_t max_reserved() const noexcept {
    return (limit() ? limit() : std::numeric_limits<std::size_t>::max()) / granule * granule;
  }
  /// What may be drawn beside what is reserved and what is leaving.
  std::size_t headroom() const noexcept;
  /// Whether little is left of the limit: how much the device has left nobody tells before a request fails.
  inline bool near_limit() const noexcept {
    auto const max_bytes = limit();
    return max_bytes && max_bytes - std::min(max_bytes, reserved_) < max_bytes / 4;
  }
  inline bool empty() const noexcept { return chunks_.empty(); }

  /// The chunk in which the address lies, or null.
  chunk* find_containing(void const* pointer) const noexcept;
  template <class Visit> void visit(Visit visitor) const {
    for (auto const& each : chunks_) visitor(*each);
  }

  /// The largest chunk without live blocks for which `may(chunk)` holds and without which at least `keep` bytes remain
  /// reserved, or null.
  template <class May> chunk* largest_idle(std::size_t keep, May may) const {
    chunk* best = nullptr;
    for (auto const& each : chunks_) {
      if (each->live_blocks > 0 || reserved_ - each->bytes < keep || (best && each->bytes <= best->bytes)) continue;
      if (may(*each)) best = each.get();
    }
    return best;
  }

private:
  std::vector<std::unique_ptr<chunk>> chunks_; // by address
  std::atomic<std::size_t> limit_;
  std::size_t reserved_ = 0;
  std::size_t releasing_ = 0;
  std::size_t peak_ = 0;
};

} // namespace gpumem::detail
