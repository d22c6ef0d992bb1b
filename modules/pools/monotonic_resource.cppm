// monotonic_resource: gives out memory of a region by an offset that only grows, until the region is reset.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <memory>
#include <utility>
export module gpumem:monotonic_resource;
import :block;
import :cuda;
import :device;
import :error;
import :pool_options;
import :pool_resource;
import :pool_upstream;
import :resource;
import :shared_state;
import :std;
import :stream;
import :sync;

namespace gpumem {

/// Options of monotonic_resource.
export struct monotonic_options {
  std::size_t region_size = std::size_t{32} << 20; ///< bytes of a region; a larger request gets a region of its own
  std::size_t limit = 0;                           ///< most bytes of all regions; 0: no limit
  /// The other options of the pool that gives the regions and gets them back at a reset. `pool.limit` must stay 0.
  pool_options pool = {.name = "monotonic"};
};

namespace detail {

// Holds the regions, each of which is a block of a pool over the upstream. Requests take memory of the newest region,
// at an offset that grows. The pool orders the reuse of a region. This class makes a stream wait for the allocation of
// a region on another stream.
class monotonic_state final {
public:
  monotonic_state(std::unique_ptr<pool_upstream> upstream, monotonic_options options);
  monotonic_state(monotonic_state const&) = delete;
  monotonic_state& operator=(monotonic_state const&) = delete;
  void add_handle() noexcept;
  void drop_handle() noexcept;

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept;
  void reset(stream_key const& key) noexcept;
  inline auto where() noexcept { return pool_->where(); }
  bool serves_stream(stream_key const& key) noexcept { return pool_->serves_stream(key); }
  std::size_t trim(std::size_t keep) { return pool_->trim(keep); }
  statistics read_statistics();
  char const* resource_name() noexcept { return pool_->resource_name(); }
  inline pool_state& pool() noexcept { return *pool_; }

private:
  struct region {
    char* base;
    std::size_t bytes;
    std::size_t used;          // bytes from the base on that are given out
    stream_key home;           // stream of the region's allocation; has a handle only if gpumem made or adopted it
    stream_uses origin = {};   // the region's allocation; work of other streams on the region must come after it
    bool used_at_home = false; // a block was freed on `home`, whose use is recorded only at a reset by another stream
    std::size_t largest() const noexcept { return bytes - used; }
  };

  ~monotonic_state() = default;
  void* take(region& region, stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept
      GPUMEM_REQUIRES(mutex_);
  expected<void*, failure> grow(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  region* find(void const* pointer) noexcept GPUMEM_REQUIRES(mutex_);
  void record_use(region& region, stream_key const& key) noexcept GPUMEM_REQUIRES(mutex_);
  void record_now(region const& region, stream_key const& key) noexcept GPUMEM_REQUIRES(mutex_);
  bool is_unused() const noexcept GPUMEM_REQUIRES(mutex_) { return handles_ == 0 && live_blocks_ == 0; }
  void end() noexcept;

  std::size_t const region_size_;
  state_ptr<pool_state> const pool_;
  sync::mutex mutex_;
  std::vector<region> regions_ GPUMEM_GUARDED_BY(mutex_);
  std::int64_t handles_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::size_t live_blocks_ GPUMEM_GUARDED_BY(mutex_) = 0; // allocated since the last reset and not freed
  statistics counts_ GPUMEM_GUARDED_BY(mutex_);
};

// Identifies the stream, and resets the state in the stream's order. Throws what `identify` throws.
void reset_monotonic(monotonic_state& state, stream_ref stream);

} // namespace detail

/// Memory that is given out by an offset and taken back all at once: `reset` frees all blocks. A free alone makes no
/// memory reusable. For work in steps that need the same scratch memory each time. An allocation takes one short lock.
///
/// The upstream gives one region at a time. If a request does not fit into the newest region, the resource adds one; a
/// request beyond the limit is `exhausted`. Requests do not wait for memory. Each block is valid in the order of its
/// stream: if another stream allocated the region, the block's stream first waits for that allocation.
///
/// A reset is a free in the order of its stream. Work that uses a block must come before the reset in that order, or
/// before the free of the block. Regions that are free again stay in a pool; `trim` gives them back. An object is a
/// handle; copies are the same resource. The resource lives until its last handle is gone and each block was freed or
/// reset. Any thread.
export template <class Upstream>
class monotonic_resource
    : public detail::forwarding_base<monotonic_resource<Upstream>, detail::monotonic_state, Upstream> {
  using base = detail::forwarding_base<monotonic_resource, detail::monotonic_state, Upstream>;

public:
  /// The memory may be used in the order of the stream on which it was allocated.
  static constexpr bool stream_ordered = true;

  /// Allocates nothing yet, unless `pool.initial_size` says so. Throws std::invalid_argument for a `region_size` of 0
  /// and for options that contradict each other, and throws what the constructor of pool_resource throws.
  explicit monotonic_resource(Upstream upstream, monotonic_options options = {})
      : state_{new detail::monotonic_state{std::make_unique<detail::held_upstream<Upstream>>(std::move(upstream)),
                                           std::move(options)}} {}

  /// Frees all blocks in the order of the stream. The caller must not free or use them afterwards. Throws cuda_error,
  /// std::invalid_argument for a stream that cannot be identified, std::bad_alloc. Any thread.
  void reset(stream_ref stream) { detail::reset_monotonic(*state_, stream); }

  /// Frees all blocks. The caller guarantees that all uses are complete and that the host has seen that. Any thread.
  void reset_sync() { state_->reset(stream_key::host()); }

  /// Returns the upstream. A copy of the result is another handle to it.
  Upstream const& upstream() const {
    return static_cast<detail::held_upstream<Upstream>&>(state_->pool().engine().upstream()).value;
  }
  // Returns what holds for the memory: the upstream says which processors can access it.
  static extend::memory_traits traits_of(detail::monotonic_state& state) noexcept {
    return state.pool().engine().upstream().traits_of_pool();
  }

  friend bool operator==(monotonic_resource const& a, monotonic_resource const& b) noexcept {
    return a.state_ == b.state_;
  }

private:
  friend base;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  detail::monotonic_state& state() const noexcept { return *state_.get(); }
  state_ptr<detail::monotonic_state> state_;
};

} // namespace gpumem
