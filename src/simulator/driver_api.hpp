// The driver's C API, its functions visible: the one way in which this library includes cuda.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
