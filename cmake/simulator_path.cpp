// The path of the simulated device; compiled into each program that links gpumem::simulator.
// SPDX-License-Identifier: Apache-2.0
extern "C" {
[[gnu::weak]] extern const char* const gpumem_simulator_path;
const char* const gpumem_simulator_path = GPUMEM_SIMULATOR_PATH;
}
