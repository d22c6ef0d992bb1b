// Includes cuda.h with visible functions; this library includes cuda.h only through this header.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
