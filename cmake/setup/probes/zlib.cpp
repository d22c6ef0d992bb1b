// zlib.
// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

int main() { return zlibVersion() == nullptr; }
