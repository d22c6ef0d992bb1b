// A profiling tool, as far as NVTX's counters go: it keeps the newest sample of each counter. A program that links
// counter_tool.cpp has it from its start.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace test {

class counter_tool {
public:
  static counter_tool& instance();

  /// Returns the newest sample of the counter that was registered last by this name; nullopt if it has none.
  std::optional<std::int64_t> newest(std::string const& name) const;
  /// Returns how many samples the tool has got.
  std::size_t samples() const;
  std::size_t counters() const;
  /// Returns what a tool would count as errors of the program.
  std::vector<std::string> faults() const;
  /// Refuses counters from now on, or takes them again.
  void refuse(bool refuses);

  // The functions of the interface.
  std::uint64_t add(std::string name, bool right);
  void sample(std::uint64_t counter, std::int64_t value);

private:
  struct counter {
    std::string name;
    std::optional<std::int64_t> newest;
  };
  mutable std::mutex mutex_;
  std::vector<counter> counters_; // the number of a counter is its place, from 1
  std::vector<std::string> faults_;
  std::size_t samples_ = 0;
  bool refuses_ = false;
};

} // namespace test
