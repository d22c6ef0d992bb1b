// Looks like a real driver: a library with the driver's SONAME, but without the simulated device.
// SPDX-License-Identifier: Apache-2.0
extern "C" int cuInit(unsigned) { return 0; }
