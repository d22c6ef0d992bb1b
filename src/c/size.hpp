// Sizes as people write them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace gpumem::c {

/// The bytes of "4096", "4096B", "1.5MiB", "1 GiB", "2GB" (binary units by their i, decimal ones without), to the
/// nearest byte; nothing if it is no size, or does not fit.
std::optional<std::size_t> parse_size(std::string_view text) noexcept;

} // namespace gpumem::c
