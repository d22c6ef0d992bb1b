// Makes a stack of resources from text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "pool.hpp"

namespace gpumem::c {

/// Makes what gpumem_make_pool describes, with options that a plain pool starts from. Throws std::invalid_argument,
/// and what the constructors of the resources throw.
std::unique_ptr<gpumem_pool> make_stack(int device, std::string_view text, pool_options const& plain = {});

/// Makes what gpumem_make_pool_over describes; throws the same.
std::unique_ptr<gpumem_pool> make_stack_over(int device, gpumem_callbacks const& callbacks, std::string_view text);

/// Throws std::invalid_argument if the text is malformed or names a resource that there is not.
void check_stack(std::string_view text);

} // namespace gpumem::c
