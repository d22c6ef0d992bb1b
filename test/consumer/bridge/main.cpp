// A user's program whose device part is in a .cu file.
// SPDX-License-Identifier: Apache-2.0
import gpumem;

int sort_on_host();

int main() { return sort_on_host(); }
