// Tables of text, as the tools print them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace bench {

using line = std::vector<std::string>;

/// Returns the lines with two blanks between the columns. The first `left` columns are aligned left, the others right.
/// All lines have as many cells as the first one.
inline std::string aligned(std::vector<line> const& lines, std::size_t left) {
  std::vector<std::size_t> widths(lines.front().size());
  for (line const& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (line const& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      std::string const blanks(widths[i] - cells[i].size(), ' ');
      text += (i == 0 ? "" : "  ") + (i < left ? cells[i] + blanks : blanks + cells[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

} // namespace bench
