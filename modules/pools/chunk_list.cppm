// A pool's upstream, and the list of chunks that are drawn from it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:chunk_list;
import :block;
import :cuda;
import :error;
import :services;
import :std;
import :stream;
import :virtual_pages;

namespace gpumem::detail {

/// A held copy of a pool's upstream, its type erased.
export class pool_upstream {
public:
  virtual ~pool_upstream() = default;

  inline bool stream_ordered() const noexcept { return stream_ordered_; }
  /// The host may touch its memory at once, whatever stream it is given to.
  inline bool host_accessible() const noexcept { return host_accessible_; }
  inline bool device_accessible() const noexcept { return device_accessible_; }
  inline int device() const noexcept { return services_.table->device(services_.state); }

  /// Whether it draws pages, in one run of addresses for each shard; else chunks.
  inline bool paged() const noexcept { return paged_.has_value(); }
  /// A run of addresses. Throws as the constructor of virtual_pages.
  std::unique_ptr<virtual_pages> make_pages() const;

  /// Memory aligned to the granule, valid in the order of the stream. Upstream may take its time: hold no lock.
  expected<void*, failure> allocate(stream_key const& stream, std::size_t bytes) noexcept;
  /// Gives memory back of which the host has seen every use complete.
  void deallocate(chunk const& done) noexcept;

protected:
  pool_upstream(bool stream_ordered, bool host_accessible, bool device_accessible) noexcept
      : stream_ordered_{stream_ordered}, host_accessible_{host_accessible}, device_accessible_{device_accessible} {}
  void attach(services_handle services) noexcept { services_ = services; }
  void use_pages(gpumem::device where, virtual_pages_options options) {
    paged_.emplace(paging{where, std::move(options)});
  }

private:
  struct paging {
    gpumem::device where;
    virtual_pages_options options;
  };
  services_handle services_;
  std::optional<paging> paged_;
  bool stream_ordered_;
  bool host_accessible_;
  bool device_accessible_;
};

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
