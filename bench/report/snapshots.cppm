// Readers of snapshots: gpumem's JSON and PyTorch's pickle.
// SPDX-License-Identifier: Apache-2.0
module;
#include <concepts>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>
export module report:snapshots;
import :events;

namespace report::detail {

export inline bool is_json(std::string_view text) {
  auto const first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}
// A dictionary in protocol 2 or later begins with 0x80; before, with a mark or an empty dictionary.
export inline bool is_pickle(std::string_view text) {
  return text.starts_with('\x80') || text.starts_with("(d") || (text.starts_with('}') && text.ends_with('.'));
}

// Both throw std::runtime_error with the file and the place.
export recording read_json_snapshot(std::string_view text, std::string const& file);
export std::vector<recording> read_pickle_snapshot(std::string_view text, std::string const& file);

// Returns the text of an error without the name of the library.
export inline std::string reason_of(std::invalid_argument const& error) {
  std::string_view reason = error.what();
  constexpr std::string_view library = "gpumem: ";
  if (reason.starts_with(library)) reason.remove_prefix(library.size());
  return std::string{reason};
}

// Calls visit(item) for each item. Puts the place in the list before the text of an std::invalid_argument.
export template <class List, std::invocable<typename List::const_reference> Visit>
void each_item(List const& list, std::string const& name, Visit visit) {
  std::size_t index = 0;
  for (auto const& item : list) {
    try {
      visit(item);
    } catch (std::invalid_argument const& error) {
      throw std::invalid_argument(name + "[" + std::to_string(index) + "]: " + reason_of(error));
    }
    ++index;
  }
}

} // namespace report::detail
