// A progress line, shown only on a terminal.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

export module replay:progress;

namespace replay {

/// One line that is overwritten at each step and cleared at the end. Not thread-safe.
export class progress {
public:
  /// Shows the line on `terminal` if that is a terminal; null shows nothing.
  progress(std::size_t steps, std::FILE* terminal);
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;
  ~progress();

  /// Starts the next step; `what` describes it.
  void step(std::string_view what);

private:
  void show(std::string const& line);

  std::FILE* terminal_;
  std::size_t steps_;
  std::size_t begun_ = 0;
  std::size_t width_ = 0;
};

} // namespace replay
