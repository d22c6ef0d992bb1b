// The calls to an upstream through its services, with any alignment.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:aligned_services;
import :error;
import :inner_alignment;
import :services;
import :std;
import :stream;

namespace gpumem::detail {

/// Allocates and frees through the services of an upstream. Some resources of other libraries align to 256 bytes only.
/// For a larger alignment this class requests more bytes from such a resource, and returns an aligned pointer inside
/// them. Any thread.
export class aligned_services {
public:
  aligned_services() noexcept = default;
  explicit aligned_services(services_handle of) noexcept : of_{of} {}

  /// Sets the upstream. Called before the first allocation.
  void attach(services_handle of) noexcept { of_ = of; }
  inline services_handle const& get() const noexcept { return of_; }

  inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                               std::size_t alignment) noexcept {
    if (aligns_to(alignment)) return of_.table->try_allocate_keyed(of_.state, &key, bytes, alignment);
    return allocate_inside(key, bytes, alignment);
  }
  inline void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    if (aligns_to(alignment)) return of_.table->deallocate_keyed(of_.state, &key, pointer, bytes, alignment);
    of_.table->deallocate_keyed(of_.state, &key, inside_.base_of(pointer), inner_alignment::padded(bytes, alignment),
                                inner_alignment::natural);
  }

private:
  // Returns whether the upstream itself serves this alignment. Resources of gpumem serve each alignment; only their
  // tables have try_allocate_behind. Resources of other libraries are trusted up to 256 bytes only.
  inline bool aligns_to(std::size_t alignment) const noexcept {
    return alignment <= inner_alignment::natural || of_.table->try_allocate_behind;
  }
  expected<void*, failure> allocate_inside(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;

  services_handle of_;
  inner_alignment inside_;
};

} // namespace gpumem::detail
