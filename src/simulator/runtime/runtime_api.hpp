// Includes the runtime's header with visible functions; this library includes it only through this header.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#pragma GCC visibility push(default)
#include <cuda_runtime_api.h>
#pragma GCC visibility pop
