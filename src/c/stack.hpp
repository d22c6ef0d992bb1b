// Makes a stack of resources from text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "pool.hpp"

namespace gpumem::c {

/// Makes the pool or stack that the text describes, as gpumem_make_pool says. A plain pool starts from the options
/// `plain`. Throws std::invalid_argument, and what the constructors of the resources throw.
std::unique_ptr<gpumem_pool> make_stack(int device, std::string_view text, pool_options const& plain = {});

/// Makes the pool or stack over the caller's functions, as gpumem_make_pool_over says. Throws as make_stack() does.
std::unique_ptr<gpumem_pool> make_stack_over(int device, gpumem_callbacks const& callbacks, std::string_view text);

/// Returns whether the stack of this text is a pool, fixed or arena, or layers that only watch one: then its limit can
/// change. Throws std::invalid_argument.
bool has_changing_limit(std::string_view text);

/// Throws std::invalid_argument if the text is malformed or names an unknown resource.
void check_stack(std::string_view text);

} // namespace gpumem::c
