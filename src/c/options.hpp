// The options of a pool, written as text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/pool_options.hpp>

#include <string_view>

namespace gpumem::c {

/// What the text says ("limit=8GiB,cross_stream=ordered"), over the options given. Throws std::invalid_argument with a
/// sentence that names the option.
pool_options parse_options(std::string_view text, pool_options options = {});

} // namespace gpumem::c
