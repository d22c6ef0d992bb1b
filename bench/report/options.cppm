// The options of the report.
// SPDX-License-Identifier: Apache-2.0
module;
#include <optional>
#include <string>
#include <vector>
export module report:options;

namespace report {

export struct options {
  std::vector<std::string> files;
  std::string page, svg, json; ///< output files; empty: none
};

/// The options, or the help text if it was asked for.
export struct parsed_options {
  options chosen;
  std::optional<std::string> help;
};
/// Throws replay::usage_error.
export parsed_options parse_options(std::vector<std::string> arguments);

} // namespace report
