// A program without modules. No driver is there, and it hears so as an exception.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool.hpp>

#include <cstdio>
#include <exception>

int main() {
  try {
    gpumem::pool const pool{0};
    std::printf("a pool with %zu bytes\n", pool.statistics().reserved);
  } catch (std::exception const& e) { std::puts(e.what()); }
}
