// Parses sizes with units.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace gpumem::c {

/// Returns the number of bytes that a text such as "4096", "4096B", "1.5MiB", "1 GiB" or "2GB" names, rounded to the
/// nearest byte. Returns none if the text is not a size or the number overflows. Units with an i are binary, others
/// decimal.
std::optional<std::size_t> parse_size(std::string_view text) noexcept;

} // namespace gpumem::c
