// A fixture that reads the pool's counters. Include it after `import gpumem;`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

class pool_counters_test : public simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  recording_upstream upstream;

  template <class Pool> static auto counters_of(Pool& pool) {
    return static_cast<gpumem::detail::pool_state*>(pool.services().state)->engine().read_counters();
  }
};

} // namespace gpumem_test
