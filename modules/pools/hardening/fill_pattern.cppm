// The patterns that a hardened pool writes to guards and freed bytes, and how it reads and compares them.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:fill_pattern;
import :std;
import :stream;

namespace gpumem::detail {

/// Bytes that look wrong: as numbers they are huge, and as pointers invalid. Newly allocated blocks are filled with the
/// pattern of the guards.
export enum class fill_pattern : unsigned char { guard = 0xfa, poison = 0xdf };

/// Bytes of memory, of a device or of the host.
export struct byte_run {
  char* data = nullptr;
  std::size_t bytes = 0;
};

/// Enqueues a write of the pattern on the stream. Returns false if the driver refuses. The caller may use the stream's
/// handle, and the stream is not capturing.
export bool fill(stream_key const& on, byte_run what, fill_pattern with) noexcept;
/// Writes the pattern by the host at once.
export void fill_by_host(byte_run what, fill_pattern with) noexcept;
/// Enqueues a copy to page-locked memory on the stream. Returns false if the driver refuses.
export bool read_back(stream_key const& on, byte_run what, char* into) noexcept;

/// The number of bytes that differ from a pattern, and the offsets of the first and the last of them.
export struct corruption {
  std::size_t bytes = 0;
  std::size_t first = 0;
  std::size_t last = 0;
};
export corruption compare(char const* data, std::size_t bytes, fill_pattern with) noexcept;

} // namespace gpumem::detail
