// Reads switches from the environment variables of the process.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
module gpumem:process.impl;
import :process;

namespace gpumem::detail {

bool is_set_in_environment(char const* variable) {
  auto const* const value = std::getenv(variable);
  std::string_view const text{value ? value : ""};
  if (text == "1" || text == "on") return true;
  if (text.empty() || text == "0" || text == "off") return false;
  throw std::invalid_argument{"gpumem: " + std::string{variable} + " must be 0, 1, off or on"};
}

} // namespace gpumem::detail
