// A pool's upstream, its type erased.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pool_upstream;
import :chunk;
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

} // namespace gpumem::detail
