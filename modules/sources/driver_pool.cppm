// A memory pool of the CUDA driver, and its options.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/statistics.hpp>
#include <map>
export module gpumem:driver_pool;
import :cuda;
import :device;
import :error;
import :resource;
import :shared_state;
import :source_state;
import :std;
import :stream;
import :stream_timeline;
import :sync;

export namespace gpumem {

/// How memory of a driver pool may be handed to other processes.
enum class export_handle : unsigned char {
  none,
  file_descriptor,
  fabric, ///< needs an NVLink fabric, and permission to use it
};

/// Options of a driver pool that gpumem creates; sizes in bytes. The driver rounds sizes to its own granularity of some
/// MiB.
struct async_options {
  std::size_t initial_size = 0; ///< bytes that are reserved at construction
  std::size_t limit = 0;        ///< most bytes that may be reserved; 0: the driver's own limit
  /// Whenever the host waits for a stream, event or context, the driver returns unused reserved memory above this many
  /// bytes.
  std::size_t release_threshold = (std::numeric_limits<std::size_t>::max)();
  bool reuse_after_events = true;      ///< reuse on another stream that an event orders after the free
  bool reuse_completed = true;         ///< reuse on another stream without such an order, once the free is complete
  bool reuse_by_inserted_waits = true; ///< reuse on another stream after a wait that the driver inserts; last resort
  export_handle exported_as = export_handle::none; ///< how other processes may get the memory
  bool hardware_decompression = false;             ///< whether the device's decompression engine can access the memory
  std::vector<device> peers = {};                  ///< other devices that may read and write the memory
  int numa_node = -1;                              ///< NUMA node of the host on which pinned memory lies; -1: any
};

/// Bytes of a driver pool, as the driver reports them. Peaks count from the pool's creation or the last reset_peaks().
struct driver_pool_usage {
  std::size_t reserved = 0;      ///< bytes that the pool has from the device
  std::size_t peak_reserved = 0; ///< highest `reserved`
  std::size_t used = 0;          ///< bytes of live blocks, rounded up by the driver
  std::size_t peak_used = 0;     ///< highest `used`

  bool operator==(driver_pool_usage const&) const = default;
};

} // namespace gpumem

namespace gpumem {

namespace detail {

enum class driver_pool_kind : unsigned char { device, managed, pinned };
// Returns the name of the resource class that owns pools of this kind.
char const* name_of(driver_pool_kind kind) noexcept;

// The handle of a driver pool and the device of its memory; does not own the pool.
struct driver_pool {
  CUmemoryPool handle = nullptr;
  class device where;
  // Whether the host may touch an allocation immediately. If so, an allocation waits on the host until its memory is
  // ready.
  bool host_ready = false;
  std::size_t limit = 0;
};

// Creates a pool with the options. Throws cuda_error, out_of_memory, std::invalid_argument; then no pool remains.
driver_pool make_driver_pool(driver_pool_kind kind, class device device, async_options const& options);
driver_pool default_driver_pool(class device device);
// Returns the default pool of managed or of pinned memory and gives the device access to the pool. Throws cuda_error if
// the driver has no such pool.
driver_pool default_driver_pool(driver_pool_kind kind, class device device);
driver_pool current_driver_pool(class device device);
void set_current_driver_pool(driver_pool const& pool);
driver_pool foreign_driver_pool(CUmemoryPool handle, class device device, bool host_ready = false);

// Allocates and frees in stream order. For handle 0, which means the legacy or the per-thread stream, the driver gets
// the legacy stream: the legacy stream is ordered with both. If a free on a foreign stream does not get the stream's
// handle, it is deferred to the next call on that stream.
class driver_pool_state : public source_state {
public:
  class device where() noexcept { return pool_.where; }
  std::size_t trim(std::size_t keep);
  statistics read_statistics() noexcept;

  CUmemoryPool handle() const noexcept { return pool_.handle; }
  driver_pool_usage usage();
  void reset_peaks();
  void set_access(class device peer, bool allowed);
  bool access(class device peer);
  std::size_t release_threshold();

protected:
  // Throws cuda_error and std::bad_alloc.
  driver_pool_state(char const* name, driver_pool const& pool);
  ~driver_pool_state() = default;

  // Allocates `bytes` and frees them immediately, so that the pool reserves them. If the allocation fails, throws the
  // exception for the failure (see throw_failure).
  void reserve(std::size_t bytes);
  // If a wait in allocate_ready() has failed, waits for the free that allocate_ready() then enqueued.
  CUresult wait_for_allocations() noexcept;

private:
  expected<void*, failure> allocate_memory(stream_key const& key, std::size_t bytes,
                                           std::size_t alignment) noexcept override;
  bool free_memory(block const& returned) noexcept override;
  bool free_in_order(stream_key const& key, block const& returned) noexcept override;
  bool may_free_inside(stream_key const& freed_on, stream_key const& now) const noexcept override;
  void mark_lost(stream_key const& key, CUresult error) noexcept override;

  expected<void*, failure> allocate_ready(std::size_t bytes) noexcept;
  failure refused(CUresult error, std::size_t bytes) noexcept;

  driver_pool const pool_;
  stream& ready_;
  std::atomic<bool> ready_pending_{false};
};

// A pool that gpumem owns. Its handles and live blocks are counted; the pool is destroyed with the last of them.
//
// The driver promises to keep a destroyed pool until its frees have run. But driver 580.159.04 crashes in the call that
// destroys the pool, or in later or concurrent calls. It does not crash if the host has synchronized with each stream
// that freed, or with an event that was recorded there later. A query that finds the frees complete does not help, and
// neither does synchronizing with another stream.
//
// So the destructor synchronizes with each of gpumem's own streams on which a free ran. All other streams may be
// destroyed before the pool. So each free on them records an event of the pool, with which the destructor synchronizes.
class async_state final : public driver_pool_state, public shared_state {
public:
  async_state(driver_pool_kind kind, class device device, async_options options);

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept;
  async_options const& options() const noexcept { return options_; }
  // Makes this the device's current pool. Throws cuda_error.
  void make_current();

private:
  // Destroys the pool if the rest of the construction throws.
  struct owned_pool {
    stream& ready; // found before the pool is made, since the destructor must not need memory
    driver_pool pool;
    bool kept = false;
    ~owned_pool();
  };
  async_state(driver_pool_kind kind, owned_pool pool, async_options options);
  ~async_state() override;

  // The newest free on one stream.
  struct freed_stream {
    stream_timeline* timeline = nullptr; // the stream if gpumem made it; otherwise `event` comes after the free
    pooled_event* event = nullptr;
    std::uint64_t id = 0; // id of the stream on which `event` was recorded
  };

  void freed_in_order(stream_key const& key) noexcept override;
  // Records the event of a stream after a free. Throws cuda_error, std::bad_alloc.
  void record_free(freed_stream& freed_stream, stream_key const& key, CUstream handle) GPUMEM_REQUIRES(frees_mutex_);
  // Waits on the host for all frees. Returns false if a free has no event, or if a wait was refused because of a
  // capture or a lost device.
  bool wait_for_frees() noexcept;
  void return_events() noexcept;
  // If this pool is still current, makes the default pool current again.
  void end_being_current() noexcept;

  std::atomic<bool> was_current_{false};
  async_options const options_;
  std::atomic<bool> free_without_event_{false};
  sync::mutex frees_mutex_;
  // The key is the timeline of the stream; for the legacy stream it is the context.
  std::map<void const*, freed_stream> frees_ GPUMEM_GUARDED_BY(frees_mutex_);
  // Events of destroyed streams whose timelines belong to new streams by now. Complete events are given back.
  std::vector<pooled_event*> dead_ GPUMEM_GUARDED_BY(frees_mutex_);
};

// The state of a pool that gpumem does not own; one per handle. Never destroyed: views are values that point to it.
class driver_pool_view_state final : public driver_pool_state {
public:
  explicit driver_pool_view_state(driver_pool const& pool) : driver_pool_state{"async_resource_view", pool} {}
  static driver_pool_view_state& of(driver_pool const& pool);
};

/// Functions of every resource over a driver pool, in addition to those of resource_base.
export template <class Self, class State, class... Properties>
class driver_pool_base : public resource_base<Self, State, Properties...> {
public:
  /// Returns the driver's handle, which is valid as long as the pool lives.
  CUmemoryPool handle() const { return pool().handle(); }

  /// Asks the driver for the reserved and the used bytes of the pool. Throws cuda_error.
  driver_pool_usage usage() const { return pool().usage(); }
  /// Sets the peaks to the current values. Throws cuda_error.
  void reset_peaks() { pool().reset_peaks(); }

  /// Lets another device read and write the pool's memory. Throws cuda_error.
  void allow(gpumem::device peer) { pool().set_access(peer, true); }
  /// Takes that permission back. Throws cuda_error.
  void forbid(gpumem::device peer) { pool().set_access(peer, false); }
  /// Returns whether a device may read and write the pool's memory. Throws cuda_error.
  bool allows(gpumem::device peer) const { return pool().access(peer); }

  /// Returns the reserved bytes above which the driver returns unused memory. Throws cuda_error.
  std::size_t release_threshold() const { return pool().release_threshold(); }

private:
  // Throws std::invalid_argument after a move from this object.
  State& pool() const {
    if (!this->valid()) throw_moved_from();
    return static_cast<Self const&>(*this).state();
  }
};

/// A shared handle of 8 bytes to a pool that gpumem owns.
export template <class Self, class... Properties>
class owned_driver_pool : public driver_pool_base<Self, async_state, Properties...> {
public:
  /// Returns the options of the constructor.
  async_options const& options() const { return state_->options(); }

  friend bool operator==(Self const& a, Self const& b) noexcept {
    owned_driver_pool const &left = a, &right = b;
    return left.state_ == right.state_;
  }

protected:
  explicit owned_driver_pool(async_state* state) noexcept : state_{state} {}
  async_state& shared() const { return *state_; }

private:
  friend resource_base<Self, async_state, Properties...>;
  friend driver_pool_base<Self, async_state, Properties...>;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  async_state& state() const noexcept { return *state_.get(); }
  state_ptr<async_state> state_;
};

} // namespace detail
} // namespace gpumem
