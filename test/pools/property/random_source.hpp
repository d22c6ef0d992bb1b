// The random numbers of a random program, the same on every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem_test {

// The SplitMix64 generator.
class random_source {
public:
  explicit random_source(std::uint64_t seed) : state_{seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du} {}
  std::uint64_t next() {
    auto z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T, std::size_t N> T of(T const (&values)[N]) { return values[below(N)]; }

private:
  std::uint64_t state_;
};

} // namespace gpumem_test
