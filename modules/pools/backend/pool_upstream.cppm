// The upstream of a pool behind a type-erased interface, and the object that holds it and knows its type.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
#include <utility>
export module gpumem:pool_upstream;
import :aligned_services;
import :block;
import :cuda;
import :device;
import :error;
import :memory_watcher;
import :page_store;
import :pool_options;
import :pool_shard;
import :services;
import :std;
import :stream;

namespace gpumem::detail {

/// Base of the object that holds a pool's copy of its upstream, whatever the type of the upstream is.
export class pool_upstream {
public:
  virtual ~pool_upstream() = default;

  /// Returns whether the host can touch memory as soon as it is allocated, on whatever stream.
  inline bool host_accessible() const noexcept { return traits_.host_accessible; }
  inline bool device_accessible() const noexcept { return traits_.device_accessible; }
  /// Returns whether the upstream's memory is valid only in the order of the stream of its allocation.
  inline bool stream_ordered() const noexcept { return traits_.stream_ordered; }
  /// Returns what holds for the memory of a pool over this upstream.
  memory_traits traits_of_pool() const noexcept { return {device_accessible(), host_accessible(), true}; }
  /// Returns whether the memory that allocate() returns for this key is valid only in the order of the key's stream.
  bool orders_by(stream_key const& key) const noexcept;
  /// Returns whether `state` is the object that serves the upstream's calls.
  inline bool is(void const* state) const noexcept { return calls_.get().state == state; }
  inline int device() const noexcept { return home_ >= 0 ? home_ : calls_.get().table->device(calls_.get().state); }

  /// Returns whether the pool maps pages. Otherwise the pool allocates chunks.
  inline bool paged() const noexcept { return pages_ != nullptr; }
  /// Returns the physical pages of the pool; null if the pool allocates chunks.
  inline page_store* pages() const noexcept { return pages_.get(); }
  /// Returns the watchers that are told of chunks and pages.
  inline memory_watchers& watchers() noexcept { return pages_ ? pages_->watchers() : chunk_watchers_; }
  /// Returns whether chunks can take the place of pages: the program asked for nothing that only pages have, such as
  /// access by other devices or a number of addresses.
  bool chunks_serve_as_pages() const noexcept;
  /// Returns devices that may use the memory of this object, as a sum of cache_limits::bit_of(). Pages can be used by
  /// no other device. Otherwise serves() asks the upstream about the devices that are not included.
  std::uint64_t devices() const noexcept;
  /// Returns whether work of the stream may use the memory of this object, whose devices() do not include the stream's.
  inline bool serves(stream_key const& key) const noexcept { return !paged() && serves_stream(calls_.get(), key); }
  /// Reserves an address range for a shard; `last` is the size of its newest one, or 0. The first range has 64 times
  /// the limit, if there is one, and at most a quarter of the device's memory. Each further one is eight times as large
  /// as the one before. A range is larger if that is less than 64 times `least`. None is larger than eight times the
  /// device's memory. If the driver refuses that, the range is smaller, but has at least `least` bytes;
  /// 0: it is not. With the option `address_space` each range has that size. Throws cuda_error and
  /// std::bad_alloc.
  std::unique_ptr<address_range> reserve_addresses(pool_shard& owner, std::size_t last, std::size_t limit,
                                                   std::size_t least) const;

  /// Reserves an address range of `bytes` bytes. Throws cuda_error and std::bad_alloc.
  std::unique_ptr<address_range> reserve_range(pool_shard& owner, std::size_t bytes) const {
    return std::make_unique<address_range>(owner, pages_, bytes, bytes);
  }

  /// Allocates memory that is aligned to the granule and valid in the order of the stream. The caller holds no lock,
  /// because the upstream may be slow.
  expected<void*, failure> allocate(stream_key const& stream, std::size_t bytes) noexcept;
  /// Gives back memory whose uses the host has seen complete.
  void deallocate(chunk const& chunk) noexcept;

  /// Allocate and free one block with its exact size, for a pool that makes each block an allocation of the upstream.
  expected<void*, failure> allocate_exact(stream_key const& stream, std::size_t bytes, std::size_t alignment) noexcept;
  void deallocate_exact(stream_key const& stream, void* pointer, std::size_t bytes, std::size_t alignment) noexcept;

protected:
  pool_upstream() noexcept = default;
  void attach(services_handle services) noexcept;
  void use_pages(gpumem::device device, virtual_pages_options options) {
    pages_ = std::make_shared<page_store>(device, std::move(options));
  }

private:
  stream_key key_for(stream_key const& stream) const noexcept;
  held_device make_home_current() const noexcept;

  aligned_services calls_;
  std::shared_ptr<page_store> pages_;
  memory_watchers chunk_watchers_;
  memory_traits traits_;
  int home_ = -1; // device of a resource of another library: the current one when the pool was made; otherwise -1
};

/// Holds a pool's upstream, a resource of this type.
export template <class Upstream> class held_upstream : public pool_upstream {
public:
  explicit held_upstream(Upstream upstream) : value{std::move(upstream)} { attach(services_of_upstream(value)); }
  /// Gets pages of the device instead of chunks of `upstream`.
  held_upstream(Upstream upstream, gpumem::device device, virtual_pages_options pages)
      : held_upstream{std::move(upstream)} {
    use_pages(device, std::move(pages));
  }
  Upstream value;
};

/// Returns an upstream of pages if the device has virtual memory and the options allow pages; otherwise one of chunks.
export std::unique_ptr<pool_upstream> held_pages(gpumem::device device, pool_options const& options,
                                                 virtual_pages_options pages);

} // namespace gpumem::detail
