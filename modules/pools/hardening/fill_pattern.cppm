// A hardened pool finds misuse of its blocks. These are the patterns that it writes to freed bytes and to guards.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:fill_pattern;
import :std;
import :stream;

namespace gpumem::detail {

/// Bytes that look wrong to a person who debugs: as numbers they are huge, and as pointers invalid. `guard` fills
/// guards and new blocks, `poison` fills freed blocks.
export enum class fill_pattern : unsigned char { guard = 0xfa, poison = 0xdf };

/// Bytes of memory, of a device or of the host.
export struct byte_run {
  char* data = nullptr;
  std::size_t bytes = 0;
};

/// Enqueues a write of the pattern on the stream. Returns false if the driver refuses. `on` must have the stream's
/// handle, and the stream must not capture a graph.
export bool fill(stream_key const& on, byte_run what, fill_pattern with) noexcept;
/// Writes the pattern on the host before it returns.
export void fill_by_host(byte_run what, fill_pattern with) noexcept;
/// Enqueues a copy of `what` on the stream, to the page-locked memory at `into`. Returns false if the driver refuses.
export bool read_back(stream_key const& on, byte_run what, char* into) noexcept;

/// The number of bytes that differ from a pattern, and the offsets of the first and the last of them.
export struct corruption {
  std::size_t bytes = 0;
  std::size_t first = 0;
  std::size_t last = 0;
};
export corruption compare(char const* data, std::size_t bytes, fill_pattern with) noexcept;

} // namespace gpumem::detail
