// Functions of the runtime library that take a stream. This file is compiled twice: the default stream is the legacy
// stream, or that of the thread.
// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <array>

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define DEFAULT_STREAM runtime_per_thread_stream
#else
#define DEFAULT_STREAM runtime_legacy_stream
#endif

namespace {

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
cudaStream_t const standard = cudaStreamPerThread;
#else
cudaStream_t const standard = cudaStreamLegacy;
#endif

class DEFAULT_STREAM : public runtime_device {
protected:
  static unsigned long long id_of(cudaStream_t stream) {
    unsigned long long id = 0;
    EXPECT_EQ(cudaStreamGetId(stream, &id), cudaSuccess);
    return id;
  }
  static cudaStream_t stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t made = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&made, flags), cudaSuccess);
    return made;
  }
};

TEST_F(DEFAULT_STREAM, stream_0_is_the_default_stream) {
  EXPECT_EQ(id_of(nullptr), id_of(standard));
  EXPECT_NE(id_of(nullptr), id_of(standard == cudaStreamLegacy ? cudaStreamPerThread : cudaStreamLegacy));
}

TEST_F(DEFAULT_STREAM, copies_are_in_stream_order) {
  std::array<char, 64> out{};
  char* a = memory(64);
  char* b = memory(64);
  EXPECT_EQ(cudaMemsetAsync(a, 3, 64, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(b, a, 64, cudaMemcpyDeviceToDevice, nullptr), cudaSuccess);
  EXPECT_EQ(b[0], 0);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  EXPECT_EQ(cudaMemcpy(out.data(), b, 64, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out[63], 3);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemset(a, 4, 64), cudaSuccess);
  EXPECT_EQ(cudaMemcpy2DAsync(b, 32, a, 32, 16, 2, cudaMemcpyDefault, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemset2DAsync(b, 32, 5, 16, 1, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(b[0], 5);
  EXPECT_EQ(b[16], 3);
  EXPECT_EQ(b[32], 4);
  EXPECT_EQ(cudaMemcpy(a, b, 64, static_cast<cudaMemcpyKind>(7)), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpyAsync(a, b, 64, static_cast<cudaMemcpyKind>(7), nullptr), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy2DAsync(b, 8, a, 32, 16, 2, cudaMemcpyDefault, nullptr), cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemset2DAsync(b, 8, 5, 16, 1, nullptr), cudaErrorInvalidPitchValue);
}

TEST_F(DEFAULT_STREAM, batches_of_copies) {
  char* a = memory(64);
  char* b = memory(64);
  a[9] = 8;
  void* const to[] = {b};
  void const* const from[] = {a};
  std::size_t const bytes[] = {64};
  cudaMemcpyAttributes how{};
  how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
  cudaError_t const expected = standard == cudaStreamLegacy ? cudaErrorInvalidValue : cudaSuccess;
  EXPECT_EQ(cudaMemcpyBatchAsync(to, from, bytes, 1, &how, &first, 1, nullptr), expected);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaStream_t const s = stream();
  EXPECT_EQ(cudaMemcpyBatchAsync(to, from, bytes, 1, &how, &first, 1, s), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
  EXPECT_EQ(b[9], 8);
}

TEST_F(DEFAULT_STREAM, streams_have_attributes) {
  int least = 9;
  int greatest = 9;
  EXPECT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  cudaStream_t made = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest), cudaSuccess);
  int value = 9;
  unsigned flags = 9;
  EXPECT_EQ(cudaStreamGetPriority(made, &value), cudaSuccess);
  EXPECT_EQ(value, greatest);
  EXPECT_EQ(cudaStreamGetFlags(made, &flags), cudaSuccess);
  EXPECT_EQ(flags, unsigned{cudaStreamNonBlocking});
  EXPECT_EQ(cudaStreamGetDevice(made, &value), cudaSuccess);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(cudaStreamDestroy(made), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle);
}

TEST_F(DEFAULT_STREAM, events_order_streams) {
  cudaStream_t const s = stream();
  cudaEvent_t e = nullptr;
  cudaEvent_t end = nullptr;
  ASSERT_EQ(cudaEventCreate(&e), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&end, cudaEventBlockingSync), cudaSuccess);
  char* block = memory(64);
  EXPECT_EQ(cudaMemsetAsync(block, 1, 64, nullptr), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(e, nullptr), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(e), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamWaitEvent(s, e, 0), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(block, 2, 64, s), cudaSuccess);
  EXPECT_EQ(cudaEventRecordWithFlags(end, s, cudaEventRecordDefault), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(block[0], 2);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, e, end), cudaSuccess);
  EXPECT_GT(milliseconds, 0);
  EXPECT_EQ(cudaEventDestroy(e), cudaSuccess);
}

TEST_F(DEFAULT_STREAM, functions_of_the_host_run_in_stream_order) {
  std::array<int, 2> ran{};
  EXPECT_EQ(cudaLaunchHostFunc(nullptr, [](void* data) { *static_cast<int*>(data) = 1; }, &ran[0]), cudaSuccess);
  auto const callback = [](cudaStream_t on, cudaError_t result, void* data) {
    EXPECT_EQ(on, nullptr);
    EXPECT_EQ(result, cudaSuccess);
    auto& both = *static_cast<std::array<int, 2>*>(data);
    both[1] = both[0] + 1;
  };
  EXPECT_EQ(cudaStreamAddCallback(nullptr, callback, &ran, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamAddCallback(nullptr, callback, &ran, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamAddCallback(nullptr, nullptr, &ran, 0), cudaErrorInvalidValue);
  EXPECT_EQ(ran[0], 0);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(ran, (std::array{1, 2}));
}

TEST_F(DEFAULT_STREAM, captured_work_is_launched) {
  cudaStream_t const s = stream();
  char* block = memory(64);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), cudaSuccess);
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  EXPECT_EQ(cudaStreamIsCapturing(s, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(cudaStreamGetCaptureInfo(s, &status, &id, nullptr, nullptr, nullptr, nullptr), cudaSuccess);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(cudaMemsetAsync(block, 6, 64, s), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess);
  std::size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 1u);
  cudaGraphExec_t made = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&made, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(made), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&made, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(made, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(block[63], 6);
  EXPECT_EQ(cudaGraphExecDestroy(made), cudaSuccess);
}

TEST_F(DEFAULT_STREAM, pools_and_managed_memory) {
  void* block = nullptr;
  EXPECT_EQ(cudaMallocAsync(&block, 64, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(block, 1, 64, nullptr), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(block, nullptr), cudaSuccess);
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, 4096, cudaMemAttachGlobal), cudaSuccess);
  EXPECT_EQ(cudaStreamAttachMemAsync(nullptr, managed, 0, cudaMemAttachGlobal), cudaSuccess);
  EXPECT_EQ(cudaMemPrefetchAsync(managed, 4096, {cudaMemLocationTypeDevice, 1}, 0, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

TEST_F(DEFAULT_STREAM, functions_of_the_driver_are_found) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuStreamGetId", &found, 13000, cudaEnableDefault, &status), cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  unsigned long long id = 0;
  EXPECT_EQ(reinterpret_cast<decltype(&cuStreamGetId)>(found)(nullptr, &id), CUDA_SUCCESS);
  EXPECT_EQ(id, id_of(nullptr));
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuNoSuch", &found, 13000, cudaEnableDefault, &status), cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuInit", &found, 99000, cudaEnableDefault, &status),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(nullptr, &found, 13000, cudaEnableDefault, &status),
            cudaErrorInvalidValue);
}

TEST_F(DEFAULT_STREAM, kernels_are_refused) {
  EXPECT_EQ(cudaLaunchKernel(this, dim3(1), dim3(1), nullptr, 0, nullptr), cudaErrorNotSupported);
  EXPECT_EQ(cudaLaunchKernelExC(nullptr, this, nullptr), cudaErrorNotSupported);
  EXPECT_EQ(cudaLaunchCooperativeKernel(this, dim3(1), dim3(1), nullptr, 0, nullptr), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
}

} // namespace
