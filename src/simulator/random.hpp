// Random numbers of the simulated device; a seed always gives the same sequence.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace simulated {

/// The generator SplitMix64. It is small, and gives the same numbers on every machine.
class random_source {
public:
  explicit random_source(std::uint64_t seed = 0) noexcept : state_(seed) {}

  [[nodiscard]] std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// Returns a number in [0, bound); `bound` must be greater than 0.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }

private:
  std::uint64_t state_;
};

} // namespace simulated
