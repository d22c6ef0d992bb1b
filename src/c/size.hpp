// Parses sizes with units.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace gpumem::c {

/// Returns the bytes of "4096", "4096B", "1.5MiB", "1 GiB", "2GB", rounded to the nearest byte; nothing if the text is
/// not a size or does not fit. Binary units have an i, decimal ones do not.
std::optional<std::size_t> parse_size(std::string_view text) noexcept;

} // namespace gpumem::c
