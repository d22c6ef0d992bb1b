// Texts that name blocks in snapshots and reports, each kept once for the process.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <string_view>
export module gpumem:labels;
import :std;

namespace gpumem::detail {

/// Returns the number of a text: the same for the same text, 0 for an empty one. Keeps each new text until the process
/// exits, up to 65,535 of them; all further ones are "(other labels)". Throws std::bad_alloc. Any thread.
export std::uint32_t label_number(std::string_view text);

/// Returns the text with this number, which label_number() has returned. Any thread.
export std::string const& label_text(std::uint32_t number);

} // namespace gpumem::detail
