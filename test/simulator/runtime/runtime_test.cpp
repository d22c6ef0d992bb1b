// The runtime library of the simulated device: each function does on the simulated driver what its header says.
// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>

namespace {

TEST_F(runtime_device, errors_are_kept_for_each_thread) {
  EXPECT_EQ(cudaMalloc(nullptr, 1), cudaErrorInvalidValue);
  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "a success keeps the error";
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(runtime_device, errors_have_names_and_texts) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorInvalidPitchValue), "cudaErrorInvalidPitchValue");
  EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

TEST_F(runtime_device, versions_are_those_of_the_headers) {
  int runtime = 0;
  int driver = 0;
  EXPECT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
  EXPECT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  EXPECT_EQ(runtime, CUDART_VERSION);
  EXPECT_EQ(driver, CUDA_VERSION);
  EXPECT_EQ(cudaRuntimeGetVersion(nullptr), cudaErrorInvalidValue);
}

TEST_F(runtime_device, devices_are_described) {
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  cudaDeviceProp all;
  ASSERT_EQ(cudaGetDeviceProperties(&all, 1), cudaSuccess);
  EXPECT_EQ(all.totalGlobalMem, std::size_t{80} << 30);
  EXPECT_EQ(all.warpSize, 32);
  EXPECT_EQ(all.maxThreadsDim[2], 64);
  EXPECT_EQ(all.major, 9);
  EXPECT_NE(std::strlen(all.name), 0u);
  int value = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1), cudaSuccess);
  EXPECT_EQ(value, all.multiProcessorCount);
  std::array<char, 16> bus{};
  ASSERT_EQ(cudaDeviceGetPCIBusId(bus.data(), bus.size(), 1), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetByPCIBusId(&value, bus.data()), cudaSuccess);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(cudaDeviceGetByPCIBusId(&value, "0000:99:00.0"), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetDeviceProperties(&all, 2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetDeviceProperties(nullptr, 0), cudaErrorInvalidValue);
}

TEST_F(runtime_device, each_thread_has_a_device) {
  int device = -1;
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  std::thread([&] { EXPECT_EQ(cudaGetDevice(&device), cudaSuccess); }).join();
  EXPECT_EQ(device, 0);
  cudaPointerAttributes of{};
  EXPECT_EQ(cudaPointerGetAttributes(&of, memory(64)), cudaSuccess);
  EXPECT_EQ(of.device, 1);
  std::thread([&] { EXPECT_EQ(cudaPointerGetAttributes(&of, memory(64)), cudaSuccess); }).join();
  EXPECT_EQ(of.device, 0);
}

TEST_F(runtime_device, a_current_context_of_the_driver_is_used) {
  std::thread([] {
    CUcontext made = nullptr;
    ASSERT_EQ(driver_function<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&made, 1), CUDA_SUCCESS);
    ASSERT_EQ(driver_function<decltype(cuCtxPushCurrent)>("cuCtxPushCurrent_v2")(made), CUDA_SUCCESS);
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 1);
    EXPECT_EQ(driver_function<decltype(cuDevicePrimaryCtxRelease)>("cuDevicePrimaryCtxRelease_v2")(1), CUDA_SUCCESS);
  }).join();
}

TEST_F(runtime_device, device_goes_on_after_a_reset) {
  char* lost = memory(64);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  cudaPointerAttributes of{};
  EXPECT_EQ(cudaPointerGetAttributes(&of, lost), cudaSuccess);
  EXPECT_EQ(of.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaFree(memory(64)), cudaSuccess);
}

TEST_F(runtime_device, flags_and_peers_are_those_of_the_context) {
  unsigned flags = 99;
  EXPECT_EQ(cudaInitDevice(0, cudaDeviceScheduleYield, cudaInitDeviceFlagsAreValid), cudaSuccess);
  EXPECT_EQ(cudaGetDeviceFlags(&flags), cudaSuccess);
  EXPECT_EQ(flags, unsigned{cudaDeviceScheduleYield});
  EXPECT_EQ(cudaSetDeviceFlags(cudaDeviceScheduleSpin), cudaSuccess);
  EXPECT_EQ(cudaGetDeviceFlags(&flags), cudaSuccess);
  EXPECT_EQ(flags, unsigned{cudaDeviceScheduleSpin});
  EXPECT_EQ(cudaInitDevice(0, 0, 8), cudaErrorInvalidValue);
  int can = 0;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaSuccess);
}

TEST_F(runtime_device, memory_is_allocated_described_and_freed) {
  void* none = this;
  EXPECT_EQ(cudaMalloc(&none, 0), cudaSuccess);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(cudaMalloc(&none, std::size_t{81} << 30), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  std::size_t free = 0;
  std::size_t total = 0;
  void* device = memory(std::size_t{1} << 30);
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total - free, std::size_t{1} << 30);
  void* host = nullptr;
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocHost(&host, 64), cudaSuccess);
  ASSERT_EQ(cudaMallocManaged(&managed, 64, cudaMemAttachGlobal), cudaSuccess);
  EXPECT_EQ(cudaMallocManaged(&none, 0, cudaMemAttachGlobal), cudaErrorInvalidValue);
  int own = 0;
  auto const type_of = [](void const* pointer) {
    cudaPointerAttributes all{};
    EXPECT_EQ(cudaPointerGetAttributes(&all, pointer), cudaSuccess);
    return all.type;
  };
  EXPECT_EQ(type_of(device), cudaMemoryTypeDevice);
  EXPECT_EQ(type_of(host), cudaMemoryTypeHost);
  EXPECT_EQ(type_of(managed), cudaMemoryTypeManaged);
  EXPECT_EQ(type_of(&own), cudaMemoryTypeUnregistered);
  void* mapped = nullptr;
  unsigned flags = 0;
  EXPECT_EQ(cudaHostGetDevicePointer(&mapped, host, 0), cudaSuccess);
  EXPECT_EQ(mapped, host);
  EXPECT_EQ(cudaHostGetFlags(&flags, host), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
}

TEST_F(runtime_device, host_memory_is_registered) {
  std::array<char, 4096> own{};
  EXPECT_EQ(cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
}

TEST_F(runtime_device, copies_and_fills_of_rows) {
  std::size_t pitch = 0;
  void* rows = nullptr;
  ASSERT_EQ(cudaMallocPitch(&rows, &pitch, 100, 3), cudaSuccess);
  EXPECT_EQ(pitch, 512u);
  std::array<char, 30> in{};
  std::array<char, 30> out{};
  in.fill(5);
  EXPECT_EQ(cudaMemcpy2D(rows, pitch, in.data(), 10, 10, 3, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemset2D(static_cast<char*>(rows) + pitch, pitch, 6, 10, 1), cudaSuccess);
  EXPECT_EQ(cudaMemcpy2D(out.data(), 10, rows, pitch, 10, 3, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out[9], 5);
  EXPECT_EQ(out[10], 6);
  EXPECT_EQ(out[20], 5);
  EXPECT_EQ(cudaMemcpy2D(rows, 9, in.data(), 10, 10, 3, cudaMemcpyHostToDevice), cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemset2D(rows, 9, 0, 10, 1), cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMallocPitch(&rows, &pitch, ~std::size_t{0}, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMallocPitch(&rows, nullptr, 1, 1), cudaErrorInvalidValue);
}

TEST_F(runtime_device, copies_between_devices) {
  char* first = memory(64);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  char* second = memory(64);
  EXPECT_EQ(cudaMemset(second, 7, 64), cudaSuccess);
  EXPECT_EQ(cudaMemcpyPeer(first, 0, second, 1, 64), cudaSuccess);
  EXPECT_EQ(cudaMemcpyPeerAsync(second, 1, first, 0, 64, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(first[63], 7);
}

TEST_F(runtime_device, pools_of_the_driver) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  cudaMemPool_t standard = nullptr;
  cudaMemPool_t now = nullptr;
  ASSERT_EQ(cudaMemPoolCreate(&pool, &properties), cudaSuccess);
  EXPECT_EQ(cudaDeviceSetMemPool(0, pool), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetMemPool(&now, 0), cudaSuccess);
  EXPECT_EQ(now, pool);
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&standard, 0), cudaSuccess);
  EXPECT_NE(standard, pool);
  std::uint64_t kept = 1 << 20;
  EXPECT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept), cudaSuccess);
  kept = 0;
  EXPECT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept), cudaSuccess);
  EXPECT_EQ(kept, 1u << 20);
  cudaMemAccessDesc const wish{{cudaMemLocationTypeDevice, 1}, cudaMemAccessFlagsProtReadWrite};
  EXPECT_EQ(cudaMemPoolSetAccess(pool, &wish, 1), cudaSuccess);
  cudaMemLocation place = wish.location;
  cudaMemAccessFlags allowed{};
  EXPECT_EQ(cudaMemPoolGetAccess(&allowed, pool, &place), cudaSuccess);
  EXPECT_EQ(allowed, cudaMemAccessFlagsProtReadWrite);
  place = {cudaMemLocationTypeDevice, 0};
  EXPECT_EQ(cudaMemGetMemPool(&now, &place, cudaMemAllocationTypePinned), cudaSuccess);
  EXPECT_EQ(now, pool);
  EXPECT_EQ(cudaMemSetMemPool(&place, cudaMemAllocationTypePinned, standard), cudaSuccess);
  EXPECT_EQ(cudaMemGetDefaultMemPool(&now, &place, cudaMemAllocationTypePinned), cudaSuccess);
  EXPECT_EQ(now, standard);
  void* block = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&block, 64, pool, nullptr), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(block, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMallocAsync(&block, 64, nullptr), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(block, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

TEST_F(runtime_device, managed_memory_has_advice) {
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, 4096, cudaMemAttachGlobal), cudaSuccess);
  cudaMemLocation const second{cudaMemLocationTypeDevice, 1};
  EXPECT_EQ(cudaMemAdvise(managed, 4096, cudaMemAdviseSetPreferredLocation, second), cudaSuccess);
  EXPECT_EQ(cudaMemPrefetchAsync(managed, 4096, second, 0, nullptr), cudaSuccess);
  int preferred = -9;
  int last = -9;
  EXPECT_EQ(cudaMemRangeGetAttribute(&preferred, sizeof preferred, cudaMemRangeAttributePreferredLocation, managed, 64),
            cudaSuccess);
  EXPECT_EQ(preferred, 1);
  void* places[] = {&last};
  std::size_t sizes[] = {sizeof last};
  cudaMemRangeAttribute which[] = {cudaMemRangeAttributeLastPrefetchLocation};
  EXPECT_EQ(cudaMemRangeGetAttributes(places, sizes, which, 1, managed, 64), cudaSuccess);
  EXPECT_EQ(last, 1);
}

TEST_F(runtime_device, functions_that_are_not_simulated_say_so_once) {
  char* block = memory(64);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(cudaMemcpyToSymbol(block, block, 64, 0, cudaMemcpyDefault), cudaErrorNotSupported);
  EXPECT_EQ(cudaProfilerStart(), cudaErrorNotSupported);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "gpumem simulator: cudaMemcpyToSymbol is not simulated\n"
                                                    "gpumem simulator: cudaProfilerStart is not simulated\n");
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
}

TEST_F(runtime_device, unordered_work_is_found) {
  cudaStream_t a = nullptr;
  cudaStream_t b = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking), cudaSuccess);
  char* block = memory(64);
  EXPECT_EQ(cudaMemsetAsync(block, 1, 64, a), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(block, 2, 64, b), cudaSuccess);
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, simulator::finding_kind::unordered_access);
}

} // namespace
