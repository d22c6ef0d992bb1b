// A user's program that imports gpumem.
// SPDX-License-Identifier: Apache-2.0
import gpumem;

int main() {}
