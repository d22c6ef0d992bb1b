// Every sequence of choices of a program, one a run, depth first.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gpumem_test {

// Answers what a schedule asks (gpumem::detail::schedule::chooser): a run takes the choices of the one before up to the
// last that has an alternative, and takes that; beyond it, always the first. A run takes the baton from threads that
// could go on `most_preemptions` times at most (Musuvathi and Qadeer's context bounding: few suffice for most faults,
// and the runs are polynomial in the places); where it must go to another thread, it goes to each.
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

  // Whether there is a run that has not been; the next is that one.
  bool next() {
    at_ = preemptions_ = 0;
    while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().taken;
    return true;
  }

  // The same choices led to another place: the program keeps something from run to run.
  bool diverged() const { return diverged_ || at_ < path_.size(); }
  std::size_t places() const { return path_.size(); }
  // Where the baton went to another than the first, for the message of a failure.
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
