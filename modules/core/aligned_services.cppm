// The calls to an upstream through its services, with any alignment.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <unordered_map>
export module gpumem:aligned_services;
import :error;
import :services;
import :std;
import :stream;
import :sync;

namespace gpumem::detail {

/// Aligns blocks of an upstream that aligns to 256 bytes only; some resources of other libraries do so. The caller
/// requests `padded()` bytes, and this class finds an aligned pointer inside them. Any thread.
export class inner_alignment {
public:
  static constexpr std::size_t natural = 256;

  /// Returns how many bytes to request, so that an aligned block of `bytes` lies inside them.
  static std::size_t padded(std::size_t bytes, std::size_t alignment) noexcept {
    return alignment > natural ? bytes + (alignment - natural) : bytes;
  }
  /// Returns the first aligned pointer in the block that begins at `base`, and records this pair of pointers. Returns
  /// null if the host has no memory to record the pair.
  void* align(void* base, std::size_t alignment) noexcept;
  /// Returns the `base` for which align() returned `pointer`, and forgets this pair.
  void* base_of(void* pointer) noexcept;

private:
  sync::mutex mutex_;
  std::unordered_map<void*, void*> bases_ GPUMEM_GUARDED_BY(mutex_); // from aligned pointer to base
};

/// Allocates and frees through the services of an upstream. Some resources of other libraries align to 256 bytes only.
/// For a larger alignment this class requests more bytes from such a resource, and returns an aligned pointer inside
/// them. Any thread.
export class aligned_services {
public:
  aligned_services() noexcept = default;
  explicit aligned_services(services_handle services) noexcept : services_{services} {}

  /// Sets the upstream. Called before the first allocation.
  void attach(services_handle services) noexcept { services_ = services; }
  inline services_handle const& get() const noexcept { return services_; }

  inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                               std::size_t alignment) noexcept {
    if (aligns_to(alignment)) return services_.table->try_allocate_keyed(services_.state, &key, bytes, alignment);
    return allocate_inside(key, bytes, alignment);
  }
  inline void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    if (aligns_to(alignment))
      return services_.table->deallocate_keyed(services_.state, &key, pointer, bytes, alignment);
    services_.table->deallocate_keyed(services_.state, &key, inside_.base_of(pointer),
                                      inner_alignment::padded(bytes, alignment), inner_alignment::natural);
  }

private:
  // Returns whether the upstream itself serves this alignment. Resources of gpumem serve each alignment; only their
  // tables have try_allocate_behind. Resources of other libraries are trusted up to 256 bytes only.
  inline bool aligns_to(std::size_t alignment) const noexcept {
    return alignment <= inner_alignment::natural || services_.table->try_allocate_behind;
  }
  expected<void*, failure> allocate_inside(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;

  services_handle services_;
  inner_alignment inside_;
};

} // namespace gpumem::detail
