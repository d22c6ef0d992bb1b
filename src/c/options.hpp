// Parses the options of a pool, and sizes with units, from text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <optional>
#include <string_view>

namespace gpumem::c {

/// Returns the number of bytes that a text such as "4096", "4096B", "1.5MiB", "1 GiB" or "2GB" names, rounded to the
/// nearest byte. Returns none if the text is not a size or the number overflows. Units with an i are binary, others
/// decimal.
std::optional<std::size_t> parse_size(std::string_view text) noexcept;

/// Returns `options` with the values that the text sets, for example "limit=8GiB,cross_stream=ordered". Throws
/// std::invalid_argument with a text that names the option.
pool_options parse_options(std::string_view text, pool_options options = {});

/// Returns whether a pool has an option of that name.
bool is_option(std::string_view name) noexcept;

/// Returns the text without blanks at its ends.
std::string_view trimmed(std::string_view text) noexcept;

} // namespace gpumem::c
