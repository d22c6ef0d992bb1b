// Sizes as people write and read them: 1GiB, 1.5MiB, 4096.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

export module replay:bytes;

namespace replay {

/// The bytes of "4096", "4096B", "1.5MiB", "1 GiB", "2GB" (binary units by their i, decimal ones without);
/// nothing if it is not a size, or not a whole number of bytes, or does not fit.
export std::optional<std::uint64_t> parse_bytes(std::string_view text);

/// The size with at most two decimals in the largest binary unit that it reaches: "7.52 GiB", "512 B".
export std::string format_bytes(std::uint64_t bytes);

} // namespace replay
