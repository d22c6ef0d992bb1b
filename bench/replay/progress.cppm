// How far the tool is, shown on a terminal and nowhere else.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

export module replay:progress;

namespace replay {

/// One line that is written over and over, and cleared at the end. Use from one thread.
export class progress {
public:
  /// Shows on `terminal` if that is one; null shows nothing.
  progress(std::size_t steps, std::FILE* terminal);
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;
  ~progress();

  /// What the step that begins now is about.
  void step(std::string_view what);

private:
  void show(std::string const& line);

  std::FILE* terminal_;
  std::size_t steps_;
  std::size_t begun_ = 0;
  std::size_t width_ = 0;
};

} // namespace replay
