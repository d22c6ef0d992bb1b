// Switches in the environment variables of the process.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:environment;

namespace gpumem::detail {

// Returns whether the variable is `1` or `on`. Returns false if it is unset, empty, `0` or `off`. Throws
// std::invalid_argument for any other value.
bool is_set_in_environment(char const* variable);

} // namespace gpumem::detail
