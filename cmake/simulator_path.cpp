// The path of the simulated device in the installed package; compiled into each program that links gpumem::simulator.
// SPDX-License-Identifier: Apache-2.0
extern "C" {
extern const char* const gpumem_simulator_installed_path;
[[gnu::weak]] const char* const gpumem_simulator_installed_path = GPUMEM_SIMULATOR_INSTALLED_PATH;
}
