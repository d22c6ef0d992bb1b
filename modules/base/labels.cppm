// Texts that name blocks in snapshots and reports, each kept once for the process.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <string_view>
export module gpumem:labels;
import :std;

namespace gpumem::detail {

/// Returns the number of a text: the same for the same text, 0 for an empty one. Keeps each new text until the process
/// exits, up to 65,535 texts at a time; all further ones are "(other labels)". Throws std::bad_alloc. Any thread.
export std::uint32_t label_number(std::string_view text);

/// Returns the text with this number, which label_number() has returned, or which a label_use has; an empty text after
/// the last label_use has ended. Any thread.
export std::string label_text(std::uint32_t number);

/// Keeps a text while it lives, for owners that come and go with names of their own. No other text gets its number
/// afterwards, before 2^32 numbers have been given. Any thread.
export class label_use {
public:
  /// Throws std::bad_alloc.
  explicit label_use(std::string_view text);
  ~label_use();
  label_use(label_use const&) = delete;
  label_use& operator=(label_use const&) = delete;

  inline std::uint32_t number() const noexcept { return number_; }

private:
  std::uint32_t const number_;
};

} // namespace gpumem::detail
