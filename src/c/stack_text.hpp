// Parses the text that describes a stack of resources.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumem::c {

/// One parsed layer of a stack: `name(inner, …, option=value, …)`.
class layer_text {
public:
  /// Parses a whole text. Throws std::invalid_argument with a text that quotes the wrong part.
  static layer_text read(std::string_view text);
  /// Returns whether the text describes a stack. If not, it has only options of a pool.
  static bool describes_stack(std::string_view text) noexcept;

  std::string const& name() const noexcept { return name_; }
  std::vector<layer_text> const& inner() const noexcept { return inner_; }
  /// Parses the text of a resource inside the value of an option of this layer. The layers around it count, so that all
  /// texts in texts together have a bounded depth. Throws what read() throws.
  layer_text read_inside(std::string_view text) const { return read_nested(text, depth_ + 1); }
  /// Removes an option and returns its value; none if it was not given. Throws std::invalid_argument if it was given
  /// twice, or has an empty value.
  std::optional<std::string> take(std::string_view option);
  /// Returns the options that were not taken, as text: "a=1,b=2".
  std::string rest() const;
  /// Throws std::invalid_argument if an option was not taken. `names` lists the options of this resource, for the
  /// message.
  void expect_no_more(std::string_view names) const;

private:
  static layer_text read_nested(std::string_view text, int depth);

  int depth_ = 0; // number of layers around this one
  std::string name_;
  std::vector<layer_text> inner_;
  std::vector<std::pair<std::string, std::string>> options_;
};

/// Splits the text at each `separator` outside parentheses, and trims blanks from the parts. Throws
/// std::invalid_argument for an empty part or for parentheses that do not match.
std::vector<std::string_view> split_outside(std::string_view text, char separator);

} // namespace gpumem::c
