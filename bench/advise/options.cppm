// The options of the adviser.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
export module advise:options;

namespace advise {

export struct options {
  std::string trace;
  std::uint64_t memory = 0; ///< bytes that the program may have; 0: no bound
  bool bisect = false;
  std::string json; ///< output file; empty: none
};

/// The options, or the help text if it was asked for.
export struct parsed_options {
  options chosen;
  std::optional<std::string> help;
};
/// Throws replay::usage_error.
export parsed_options parse_options(std::vector<std::string> arguments);

} // namespace advise
