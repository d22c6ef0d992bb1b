// The functions of default_stream.cpp under the names for the per-thread default stream.
// SPDX-License-Identifier: Apache-2.0
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "default_stream.cpp"
