// binning_resource: sends each request to the resource of the smallest bin that holds its size.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
export module gpumem:binning_resource;
import :aligned_services;
import :cuda;
import :device;
import :error;
import :fixed_size_resource;
import :holder;
import :memory_watcher;
import :misuse;
import :pointer_set;
import :resource;
import :services;
import :shared_state;
import :std;
import :stream;
import :sync;
import :waiter;

namespace gpumem {

/// Options of binning_resource.
export struct binning_options {
  int min_exponent = 0;  ///< the smallest fixed-size bin has 2 to this power bytes, each next one twice that
  int max_exponent = -1; ///< the largest one has 2 to this power, 62 at most; less than min_exponent: no such bins
  std::size_t blocks_per_chunk = 128; ///< number of blocks that such a bin gets from the upstream as one chunk
};

namespace detail {

// One bin, which owns its resource. It is also a grant_hook: the resource calls it for each block that a waiting
// request gets, and the bin counts the block.
class bin : public grant_hook {
public:
  bin(std::size_t size, bool allocates_inside) noexcept : size{size}, allocates_inside_{allocates_inside} {}
  virtual ~bin() = default;
  bin(bin const&) = delete;
  bin& operator=(bin const&) = delete;

  // Allocates a block, and counts it as live in the binning_resource.
  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    auto const refused = refused_calls;
    count_bytes(key, -static_cast<std::ptrdiff_t>(bytes));
    calls_.deallocate(key, pointer, bytes, alignment);
    if (refused_calls != refused) count_bytes(key, static_cast<std::ptrdiff_t>(bytes)); // the block is still live
  }
  // Returns whether the block came from this bin, and takes its record if so. The caller asks the bins by size until
  // one returns true. A bin that records no blocks takes every block that comes that far.
  bool forget(void const* pointer, pointer_set::record& record) noexcept {
    return !late_.load(std::memory_order_acquire) || (record = given_.take(pointer));
  }
  // Puts back a record that forget() has taken: the free of the block was refused.
  void put_back(pointer_set::record record) noexcept { given_.put_back(std::move(record)); }
  // Called if the bin was added before the first request.
  void set_early() noexcept { late_.store(false, std::memory_order_release); }
  // `index`: the number of bins that were added before.
  void set_owner(shared_state& owner, std::size_t index) noexcept {
    owner_ = &owner;
    index_ = index;
  }
  std::size_t index() const noexcept { return index_; }
  services_handle const& services() const noexcept { return calls_.get(); }
  // Returns whether the chunks of this bin are blocks of the upstream.
  bool is_inside() const noexcept { return allocates_inside_; }
  bool admit(waiter& item) noexcept;
  bool cancel(waiter& item) noexcept;
  // Records a use. Returns false if the block is no live block of the bin's resource, or if that resource records no
  // uses.
  virtual bool record_use(void* pointer, stream_ref stream) = 0;
  // Both do nothing if the type of the bin's resource does not tell that it is a pool.
  virtual bool synchronize(std::chrono::nanoseconds longest) = 0;
  virtual void reset_peaks() = 0;

  std::size_t const size; // largest request; SIZE_MAX for the upstream

protected:
  void attach(services_handle services) noexcept { calls_.attach(services); }

private:
  void on_grant(waiter const& item, request_part const& part) noexcept override;
  void on_refusal(waiter& item) noexcept override;
  // Changes the bytes that the holder of the call has in this bin.
  void count_bytes(stream_key const& key, std::ptrdiff_t change) noexcept {
    if (auto* const unit = key.context().unit()) unit->count_at(owner_, index_, change);
  }

  aligned_services calls_;
  bool const allocates_inside_;
  shared_state* owner_ = nullptr; // counts the live blocks
  std::size_t index_ = 0;
  std::atomic<bool> late_{true}; // added after the first request: other bins may have live blocks of its sizes
  pointer_set given_;            // the live blocks of a late bin
};

template <class R> class held_bin final : public bin {
public:
  held_bin(std::size_t size, R resource, bool allocates_inside)
      : bin{size, allocates_inside}, value{std::move(resource)} {
    attach(services_of_upstream(value));
  }
  bool record_use(void* pointer, stream_ref stream) override {
    if constexpr (requires { value.find(pointer)->live, value.record_use(pointer, stream); }) {
      auto const found = value.find(pointer);
      if (!found || !found->live) return false;
      value.record_use(pointer, stream);
      return true;
    }
    return false;
  }
  bool synchronize(std::chrono::nanoseconds longest) override {
    if constexpr (requires { value.synchronize(longest); }) return value.synchronize(longest);
    return true;
  }
  void reset_peaks() override {
    if constexpr (requires { value.reset_peaks(); }) value.reset_peaks();
  }
  R value;
};

class binning_state final : public shared_state {
public:
  static constexpr bool forwards_captures = true; // each bin decides whether it serves a capturing stream

  explicit binning_state(std::unique_ptr<bin> upstream);

  // Adds a bin. Throws std::invalid_argument if its size is 0, exceeds PTRDIFF_MAX, or is that of another bin, and if
  // its resource cannot serve blocks of that size. Also throws it if the host or devices can access the memory of the
  // upstream and not that of the bin.
  void add(std::unique_ptr<bin> added);

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept;
  std::optional<device> where() noexcept { return device_; }
  bool admit(waiter& item) noexcept;
  bool cancel_waiter(waiter& item) noexcept;
  bool is_too_large(waiter& item) noexcept;
  void on_holder_event(holder& unit, holder_event event) noexcept;
  // Returns true if one of the bins serves the stream, since a block can come from each.
  bool serves_stream(stream_key const& key) const noexcept;
  std::size_t trim(std::size_t keep);
  bool synchronize(std::chrono::nanoseconds longest);
  void reset_peaks();
  bool watch_memory(memory_watcher& watcher, bool begin);
  bool set_label(void const* pointer, unsigned label) noexcept;
  void append_holders(std::size_t bytes, std::string& text);
  statistics read_statistics();
  char const* resource_name() noexcept { return name_of(upstream().services()); }
  bool record_use(void* pointer, stream_ref stream);
  std::vector<std::size_t> sizes() const;
  bin& upstream() noexcept { return *bins_.front(); }
  // A bin is a pool in most cases, so its memory counts as valid only in the order of a stream.
  memory_traits traits() noexcept {
    auto const outer = traits_of_services(table().back()->services());
    return {outer.device_accessible, outer.host_accessible, true};
  }

private:
  using bin_table = std::vector<bin*>; // by size, the upstream last

  ~binning_state() override = default;
  bin_table const& table() const noexcept { return *table_.load(std::memory_order_seq_cst); }
  bin& bin_for(std::size_t bytes) noexcept;
  bin* bin_for(waiter& item) noexcept;
  void note_request() noexcept {
    if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_seq_cst);
  }

  std::optional<device> device_;
  std::atomic<bool> used_{false}; // set by the first request
  std::atomic<bin_table const*> table_{nullptr};
  sync::mutex mutex_;
  std::vector<std::unique_ptr<bin>> bins_;               // the upstream first; grows under the lock
  std::vector<std::unique_ptr<bin_table const>> tables_; // old tables too, which other threads may be reading
};

// Throws std::invalid_argument for exponents outside 0 to 62, and for bins with a `blocks_per_chunk` of 0.
void check_exponents(binning_options const& options);

} // namespace detail

/// Sends each request to the bin with the smallest size that holds it, and larger requests to the upstream. A bin is a
/// pool of blocks of one size over the upstream, a resource of the caller's, or the upstream itself. The resource owns
/// its bins. It is made for programs whose sizes are known; a pool_resource serves mixed sizes in less memory.
///
/// Bins may be added at any time. A block goes back to the bin that it came from. For that, a bin that is added after
/// the first request records its live blocks, which costs a lock in each of its calls.
///
/// A request can wait only in its bin, and only if the bin's resource lets requests wait. `acquire_all` waits only if
/// one bin serves all blocks; otherwise it fails unless all blocks have memory now. `trim` trims each bin, then the
/// upstream. Statistics are sums over the bins and the upstream. These sums include memory that other users allocate
/// from the same resources. A chunk that a bin got from the upstream counts once. A resource without statistics adds
/// zeros.
///
/// An object is a handle; copies are the same resource. The resource lives until its last handle is gone and its last
/// block is freed. Any thread.
export template <class Upstream>
class binning_resource : public detail::forwarding_base<binning_resource<Upstream>, detail::binning_state, Upstream> {
  using base = detail::forwarding_base<binning_resource, detail::binning_state, Upstream>;

public:
  /// The memory may be used in the order of the stream on which it was allocated.
  static constexpr bool stream_ordered = true;

  /// Makes the bins of the options, each a fixed_size_resource over the upstream. They allocate nothing before their
  /// first request. Throws std::invalid_argument for exponents outside 0 to 62 and for bins with a `blocks_per_chunk`
  /// of 0, std::bad_alloc.
  explicit binning_resource(Upstream upstream, binning_options options = {})
      : state_{new detail::binning_state{
            std::make_unique<detail::held_bin<Upstream>>(SIZE_MAX, std::move(upstream), false)}} {
    detail::check_exponents(options);
    for (int each = options.min_exponent; each <= options.max_exponent; ++each)
      add_fixed_bin(std::size_t{1} << each, options.blocks_per_chunk);
  }

  /// Adds a bin for requests of up to `size` bytes, which a resource of the caller's serves. The resource must have the
  /// accessibility properties of the upstream; if the type of one of them is erased, that is checked here. Throws
  /// std::invalid_argument if the properties are missing, if `size` is 0 or above PTRDIFF_MAX, or if there is a bin of
  /// that size. Throws it also if the resource refuses requests for `size` bytes as too large. If the resource is of
  /// another library, allocates and frees a block of `size` bytes to find that out.
  template <mr::resource R>
    requires(mr::has_property<R, mr::device_accessible> || !mr::has_property<Upstream, mr::device_accessible>) &&
            (mr::has_property<R, mr::host_accessible> || !mr::has_property<Upstream, mr::host_accessible>)
  void add_bin(std::size_t size, R resource) {
    state_->add(std::make_unique<detail::held_bin<R>>(size, std::move(resource), false));
  }

  /// Adds a bin of `size` bytes whose requests go to the upstream, although a larger bin would hold them.
  void add_upstream_bin(std::size_t size) {
    state_->add(std::make_unique<detail::held_bin<Upstream>>(size, upstream(), false));
  }

  /// Adds a bin of blocks of `size` bytes, which a fixed_size_resource over the upstream serves.
  void add_fixed_bin(std::size_t size, std::size_t blocks_per_chunk = 128) {
    using fixed = fixed_size_resource<Upstream>;
    fixed made{upstream(), {.block_size = size, .blocks_per_chunk = blocks_per_chunk}};
    state_->add(std::make_unique<detail::held_bin<fixed>>(size, std::move(made), true));
  }

  /// Returns the sizes of the bins, the smallest first. Throws std::bad_alloc.
  std::vector<std::size_t> bin_sizes() const { return state_->sizes(); }

  /// Declares that all uses of the block on this stream are enqueued. The block's free need not be ordered after these
  /// uses, but the memory is reused only after them. Throws std::invalid_argument if no bin knows the block, or if the
  /// bin's resource records no uses.
  void record_use(void* pointer, stream_ref stream)
    requires requires(Upstream& upstream) { upstream.record_use(pointer, stream); }
  {
    if (pointer && !state_->record_use(pointer, stream))
      throw std::invalid_argument{"gpumem: no bin of the binning_resource records uses of this block"};
  }

  /// Blocks the calling thread, `longest` at most, until no work on streams may use free memory of the bins and of the
  /// upstream, as pool_resource::synchronize does. Passes over those that are no pools by their types. Returns false if
  /// one of them returned false.
  bool synchronize(std::chrono::nanoseconds longest) { return state_->synchronize(longest); }
  /// Makes the peaks in the statistics of the same resources count from now on.
  void reset_peaks() { state_->reset_peaks(); }

  /// Returns the upstream. A copy of the result is another handle to it.
  Upstream const& upstream() const { return static_cast<detail::held_bin<Upstream>&>(state_->upstream()).value; }
  // Returns what holds for the memory of all bins.
  static extend::memory_traits traits_of(detail::binning_state& state) noexcept { return state.traits(); }

  friend bool operator==(binning_resource const& a, binning_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  detail::binning_state& state() const noexcept { return *state_.get(); }
  state_ptr<detail::binning_state> state_;
};

} // namespace gpumem
