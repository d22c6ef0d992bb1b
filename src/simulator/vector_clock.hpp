// vector_clock: for each component (a stream or the host), the number of its operations that are ordered before a
// point.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simulated {

inline constexpr std::uint32_t host_component = 0;

class vector_clock {
public:
  [[nodiscard]] std::uint64_t at(std::uint32_t component) const noexcept {
    return component < counts_.size() ? counts_[component] : 0;
  }

  [[nodiscard]] bool covers(std::uint32_t component, std::uint64_t number) const noexcept {
    return at(component) >= number;
  }

  void set(std::uint32_t component, std::uint64_t number) {
    if (component >= counts_.size()) counts_.resize(component + 1, 0);
    counts_[component] = number;
  }

  void join(const vector_clock& other) {
    if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size(), 0);
    for (std::size_t i = 0; i < other.counts_.size(); ++i)
      if (counts_[i] < other.counts_[i]) counts_[i] = other.counts_[i];
  }

private:
  std::vector<std::uint64_t> counts_;
};

} // namespace simulated
