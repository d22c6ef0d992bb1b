// Parses the options of a pool from text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/pool_options.hpp>

#include <string_view>

namespace gpumem::c {

/// Returns `options` with the values that the text sets, for example "limit=8GiB,cross_stream=ordered". Throws
/// std::invalid_argument with a text that names the option.
pool_options parse_options(std::string_view text, pool_options options = {});

/// Returns whether a pool has an option of that name.
bool is_option(std::string_view name) noexcept;

/// Returns the text without blanks at its ends.
std::string_view trimmed(std::string_view text) noexcept;

} // namespace gpumem::c
