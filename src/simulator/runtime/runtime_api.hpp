// Declares the functions of the CUDA runtime with default visibility. All files of this library include the runtime's
// header through this one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#pragma GCC visibility push(default)
#include <cuda_runtime_api.h>
#pragma GCC visibility pop
