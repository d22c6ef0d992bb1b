// Draws the progress line.
// SPDX-License-Identifier: Apache-2.0
module;

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

module replay:progress.impl;

import :progress;

namespace replay {

progress::progress(std::size_t steps, std::FILE* terminal)
    : terminal_{terminal != nullptr && isatty(fileno(terminal)) != 0 ? terminal : nullptr}, steps_{steps} {}

progress::~progress() {
  if (terminal_ != nullptr && width_ != 0) show("");
}

void progress::step(std::string_view what) {
  std::size_t const percent = std::min<std::size_t>(begun_++ * 100 / std::max<std::size_t>(steps_, 1), 99);
  if (terminal_ != nullptr) show(std::to_string(percent) + "% " + std::string(what));
}

void progress::show(std::string const& line) {
  std::string const blanks(width_ > line.size() ? width_ - line.size() : 0, ' ');
  std::fprintf(terminal_, "\r%s%s\r%s", line.c_str(), blanks.c_str(), line.c_str());
  std::fflush(terminal_);
  width_ = line.size();
}

} // namespace replay
