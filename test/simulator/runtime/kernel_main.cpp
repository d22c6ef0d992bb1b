// Calls the function of kernel.cu.
// SPDX-License-Identifier: Apache-2.0
int print_launch_error();

int main() { return print_launch_error(); }
