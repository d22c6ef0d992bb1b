// The tests of stream_test.cpp with the default stream of the thread.
// SPDX-License-Identifier: Apache-2.0
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "stream_test.cpp"
