// Parses the command lines of the tools. A header, since CLI11 in the interface of a module would slow down its
// importers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <gpumem/version.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace replay {

/// Adds --version, which prints the name of `app` and the version of gpumem. CLI::Success then ends the parsing.
inline void declare_version(CLI::App& app) {
  std::ostringstream text;
  text << app.get_name() << ' ' << GPUMEM_VERSION_MAJOR << '.' << GPUMEM_VERSION_MINOR << '.' << GPUMEM_VERSION_PATCH;
  app.set_version_flag("--version", text.str(), "Print the version and exit");
}

/// Parses the words after the program's name by the options of `app`. Returns the text to print if the help or the
/// version was asked for. Throws Error, with a text, for a word that the options do not take. An unknown option comes
/// before a missing file.
template <class Error>
std::optional<std::string> parse_command_line(CLI::App& app, std::vector<std::string> arguments) {
  declare_version(app);
  app.allow_extras();
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(std::move(arguments));
  } catch (CLI::Success const& asked) {
    std::ostringstream text;
    app.exit(asked, text);
    return text.str();
  } catch (CLI::ParseError const& error) { throw Error(error.what()); }
  if (auto const extra = app.remaining(); !extra.empty()) {
    bool const option = extra.front().starts_with('-');
    throw Error(option ? "unknown option '" + extra.front() + "'"
                       : "one file at a time: '" + extra.front() + "' is another one");
  }
  return std::nullopt;
}

} // namespace replay
