// The adviser's answer as text and as JSON.
// SPDX-License-Identifier: Apache-2.0
module;
#include <optional>
#include <span>
#include <string>
export module advise:answer;
import replay;
import :candidate;
import :limits;
import :options;

namespace advise {

/// Everything that an answer shows.
export struct advice {
  replay::loaded_trace const& trace;
  options const& chosen;
  std::span<candidate const> all;
  choice made;
  std::optional<least_limit> least; ///< with `bisect`
};

/// Returns one line with the answer: its title, what it reserves, and its declaration.
export std::string format_first(advice const& given);
/// Returns the answer, the reasons, and a table of all candidates.
export std::string format_text(advice const& given);
/// Returns the same as an object. Field names include the units.
export std::string format_json(advice const& given);

} // namespace advise
