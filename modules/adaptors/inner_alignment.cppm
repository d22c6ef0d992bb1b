// Alignment inside blocks of resources that align to 256 bytes only.
// SPDX-License-Identifier: Apache-2.0
module;
#include <unordered_map>
export module gpumem:inner_alignment;
import :std;
import :sync;

namespace gpumem::detail {

/// Aligns blocks of an upstream that aligns to 256 bytes only, as resources of other libraries do: the caller requests
/// more bytes, and this class finds an aligned pointer inside. Any thread.
export class inner_alignment {
public:
  static constexpr std::size_t natural = 256;

  /// Returns the bytes to request for a block of `bytes`; an alignment of at most 256 needs no more.
  static std::size_t padded(std::size_t bytes, std::size_t alignment) noexcept {
    return alignment > natural ? bytes + (alignment - natural) : bytes;
  }
  /// Returns the aligned pointer in a block that begins at `base`; null if the host has no memory to record it.
  void* align(void* base, std::size_t alignment) noexcept;
  /// Returns the pointer that the upstream gave, and forgets the block.
  void* base_of(void* pointer) noexcept;

private:
  sync::mutex mutex_;
  std::unordered_map<void*, void*> bases_ __attribute__((guarded_by(mutex_))); // by aligned pointer, where they differ
};

} // namespace gpumem::detail
