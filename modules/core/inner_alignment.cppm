// Finds aligned pointers inside the blocks of resources that align to 256 bytes only.
// SPDX-License-Identifier: Apache-2.0
module;
#include <unordered_map>
export module gpumem:inner_alignment;
import :std;
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
  std::unordered_map<void*, void*> bases_ __attribute__((guarded_by(mutex_))); // from aligned pointer to base
};

} // namespace gpumem::detail
