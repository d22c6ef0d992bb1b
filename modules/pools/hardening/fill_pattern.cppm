// What a hardened pool writes to memory that is nobody's, and how it reads it again.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:fill_pattern;
import :std;
import :stream;

namespace gpumem::detail {

/// Bytes that look wrong: as numbers they are huge, as pointers they point nowhere. Fresh memory has the guards' too.
export enum class fill_pattern : unsigned char { guard = 0xfa, poison = 0xdf };

/// Bytes of memory, of a device or of the host.
export struct byte_run {
  char* data = nullptr;
  std::size_t bytes = 0;
};

/// Writes the pattern in the order of the stream, which the caller may touch; false if the driver refuses. No capture
/// may go on there.
export bool fill(stream_key const& on, byte_run what, fill_pattern with) noexcept;
/// The same by the host, now.
export void fill_by_host(byte_run what, fill_pattern with) noexcept;
/// Copies to page-locked memory in the order of the stream; false if the driver refuses.
export bool read_back(stream_key const& on, byte_run what, char* into) noexcept;

/// How many bytes are not what the pattern makes them; `first` and `last` are then where the outermost of them are.
export struct corruption {
  std::size_t bytes = 0;
  std::size_t first = 0;
  std::size_t last = 0;
};
export corruption compare(char const* data, std::size_t bytes, fill_pattern with) noexcept;

} // namespace gpumem::detail
