// Enumerates all sequences of scheduling choices of a program depth first, one per run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gpumem_test {

// Answers the questions of a schedule (gpumem::detail::schedule::chooser). A run repeats the choices of the previous
// run up to the last one with an untried alternative, takes that, and afterwards always takes the first. A run preempts
// a thread that could go on at most `most_preemptions` times. This is Musuvathi and Qadeer's context bounding: few
// preemptions suffice for most faults, and the number of runs is polynomial in the number of places. Where the thread
// cannot go on, every other thread is tried.
class choices {
public:
  explicit choices(unsigned most_preemptions) : most_{most_preemptions} {}

  std::size_t choose(std::size_t candidates, bool may_stay) {
    auto const here = at_++;
    auto const options = may_stay && preemptions_ == most_ ? 1 : candidates;
    if (here == path_.size()) {
      path_.push_back({0, options, may_stay});
    } else if (path_[here].options != options || path_[here].may_stay != may_stay) {
      diverged_ = true;
      return 0;
    }
    auto const taken = path_[here].taken;
    preemptions_ += may_stay && taken > 0;
    return taken;
  }

  // Advances to the next run; returns whether there is one that has not been made.
  bool next() {
    at_ = preemptions_ = 0;
    while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().taken;
    return true;
  }

  // True if the same choices led to other options: the program keeps state from run to run.
  bool diverged() const { return diverged_ || at_ < path_.size(); }
  std::size_t places() const { return path_.size(); }
  // Returns the places where another thread than the first was chosen, for the message of a failure.
  std::string to_text() const {
    std::string text;
    for (std::size_t i = 0; i < path_.size(); ++i) {
      if (path_[i].taken > 0) text += ' ' + std::to_string(i) + ':' + std::to_string(path_[i].taken);
    }
    return text;
  }

private:
  struct place {
    std::size_t taken;
    std::size_t options;
    bool may_stay;
  };
  unsigned const most_;
  std::vector<place> path_;
  std::size_t at_ = 0;
  unsigned preemptions_ = 0;
  bool diverged_ = false;
};

} // namespace gpumem_test
