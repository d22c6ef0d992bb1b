// Stands in for a real driver: a library with its SONAME and nothing of the simulated device.
// SPDX-License-Identifier: Apache-2.0
extern "C" int cuInit(unsigned) { return 0; }
