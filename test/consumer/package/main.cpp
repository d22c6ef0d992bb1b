// A program that imports the module; the tests of the package configure it and do not build it.
// SPDX-License-Identifier: Apache-2.0
import gpumem;

int main() {}
