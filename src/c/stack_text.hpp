// The text that describes a stack of resources, taken apart.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumem::c {

/// One layer of `name(inner, …, option=value, …)`.
class layer_text {
public:
  /// Reads a whole text. Throws std::invalid_argument, naming the place.
  static layer_text read(std::string_view text);
  /// Whether the text describes a stack; otherwise it has only options of a pool.
  static bool describes_stack(std::string_view text) noexcept;

  std::string const& name() const noexcept { return name_; }
  std::vector<layer_text> const& inner() const noexcept { return inner_; }
  /// Removes an option and returns its value; none if it was not given. Throws std::invalid_argument if it was given
  /// twice, or has an empty value.
  std::optional<std::string> take(std::string_view option);
  /// Returns the options that were not taken, as text: "a=1,b=2".
  std::string rest() const;
  /// Throws std::invalid_argument if there is an option that was not taken; `known` names those that there are.
  void expect_no_more(std::string_view known) const;

private:
  static layer_text read_nested(std::string_view text, int depth);

  std::string name_;
  std::vector<layer_text> inner_;
  std::vector<std::pair<std::string, std::string>> options_;
};

/// Splits at the letter where it is outside parentheses, and trims blanks. Throws std::invalid_argument for an empty
/// part or for parentheses that do not match.
std::vector<std::string_view> split_outside(std::string_view text, char at);

} // namespace gpumem::c
