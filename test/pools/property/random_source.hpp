// The random numbers of a random program, the same on every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../../src/simulator/random.hpp"

#include <cstddef>
#include <cstdint>

namespace gpumem_test {

class random_source : public simulated::random_source {
public:
  explicit random_source(std::uint64_t seed)
      : simulated::random_source{seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du} {}
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T, std::size_t N> T of(T const (&values)[N]) { return values[below(N)]; }
};

} // namespace gpumem_test
