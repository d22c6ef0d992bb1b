/* A program on the runtime, built with the toolkit's headers and linked to the shared runtime; it knows nothing of the
 * simulated device. Returns 0 if everything is as on a real device.
 * SPDX-License-Identifier: Apache-2.0 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    cudaError_t result = (call);                                                                                       \
    if (result != cudaSuccess) {                                                                                       \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, cudaGetErrorName(result), cudaGetErrorString(result));            \
      return 1;                                                                                                        \
    }                                                                                                                  \
  } while (0)

static void CUDART_CB add_one(void* data) { ++*(int*)data; }

int main(void) {
  enum { count = 1000 };
  static int in[count], out[count];
  cudaStream_t upload, compute;
  cudaEvent_t ready;
  int *memory, *host, devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  for (int i = 0; i < count; ++i) in[i] = i;
  CHECK(cudaStreamCreate(&upload));
  CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  CHECK(cudaMalloc((void**)&memory, sizeof in));
  CHECK(cudaMallocHost((void**)&host, sizeof in));
  CHECK(cudaMemcpyAsync(memory, in, sizeof in, cudaMemcpyHostToDevice, upload));
  CHECK(cudaEventRecord(ready, upload));
  CHECK(cudaStreamWaitEvent(compute, ready, 0));
  CHECK(cudaMemcpyAsync(host, memory, sizeof in, cudaMemcpyDeviceToHost, compute));
  CHECK(cudaLaunchHostFunc(compute, add_one, host));
  CHECK(cudaStreamSynchronize(compute));
  memcpy(out, host, sizeof out);
  if (devices < 1 || out[0] != 1 || out[count - 1] != count - 1) return 2;
  CHECK(cudaFreeHost(host));
  CHECK(cudaFree(memory));
  CHECK(cudaEventDestroy(ready));
  CHECK(cudaStreamDestroy(upload));
  CHECK(cudaStreamDestroy(compute));
  CHECK(cudaGetLastError());
  puts("done");
  return 0;
}
