// The driver's functions, looked up as a program without libcuda does, and a new simulated device for each test.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/simulator.hpp>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace simulator = gpumem::simulator;

/// An entry point of the driver; it is looked up when it is assigned to a function pointer.
struct entry {
  char const* name;
  int version = CUDA_VERSION;
  cuuint64_t flags = 0;

  template <class Function> operator Function*() const {
    void* found = nullptr;
    look_up()(name, &found, version, flags, nullptr);
    if (found == nullptr) throw std::runtime_error(std::string("no entry point ") + name);
    return reinterpret_cast<Function*>(found);
  }

  static decltype(&::cuGetProcAddress) look_up() {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<decltype(&::cuGetProcAddress)>(::dlsym(library, "cuGetProcAddress_v2"));
  }
};

struct driver_functions {
  decltype(&::cuInit) init = entry{"cuInit"};
  decltype(&::cuDeviceGetCount) device_count = entry{"cuDeviceGetCount"};
  decltype(&::cuDevicePrimaryCtxRetain) retain = entry{"cuDevicePrimaryCtxRetain"};
  decltype(&::cuDevicePrimaryCtxRelease) release = entry{"cuDevicePrimaryCtxRelease"};
  decltype(&::cuDevicePrimaryCtxReset) reset = entry{"cuDevicePrimaryCtxReset"};
  decltype(&::cuDevicePrimaryCtxGetState) context_state = entry{"cuDevicePrimaryCtxGetState"};
  decltype(&::cuCtxSetCurrent) set_current = entry{"cuCtxSetCurrent"};
  decltype(&::cuCtxGetCurrent) get_current = entry{"cuCtxGetCurrent"};
  decltype(&::cuCtxPushCurrent) push_current = entry{"cuCtxPushCurrent"};
  decltype(&::cuCtxPopCurrent) pop_current = entry{"cuCtxPopCurrent"};
  decltype(&::cuCtxGetDevice) context_device = entry{"cuCtxGetDevice"};
  decltype(&::cuCtxGetId) context_id = entry{"cuCtxGetId"};
  decltype(&::cuCtxSynchronize) context_synchronize = entry{"cuCtxSynchronize"};
  decltype(&::cuCtxRecordEvent) context_record = entry{"cuCtxRecordEvent"};
  decltype(&::cuStreamCreate) stream_create = entry{"cuStreamCreate"};
  decltype(&::cuStreamCreateWithPriority) stream_create_with_priority = entry{"cuStreamCreateWithPriority"};
  decltype(&::cuStreamDestroy) stream_destroy = entry{"cuStreamDestroy"};
  decltype(&::cuStreamQuery) stream_query = entry{"cuStreamQuery"};
  decltype(&::cuStreamSynchronize) stream_synchronize = entry{"cuStreamSynchronize"};
  decltype(&::cuStreamWaitEvent) stream_wait = entry{"cuStreamWaitEvent"};
  decltype(&::cuStreamGetId) stream_id = entry{"cuStreamGetId"};
  decltype(&::cuStreamGetDevice) stream_device = entry{"cuStreamGetDevice"};
  decltype(&::cuStreamGetFlags) stream_flags = entry{"cuStreamGetFlags"};
  decltype(&::cuStreamGetPriority) stream_priority = entry{"cuStreamGetPriority"};
  decltype(&::cuStreamGetCtx) stream_context = entry{"cuStreamGetCtx", 12000};
  decltype(&::cuLaunchHostFunc) host_function = entry{"cuLaunchHostFunc"};
  decltype(&::cuStreamWaitValue32) wait_value = entry{"cuStreamWaitValue32"};
  decltype(&::cuStreamWriteValue32) write_value = entry{"cuStreamWriteValue32"};
  decltype(&::cuStreamWaitValue64) wait_value_64 = entry{"cuStreamWaitValue64"};
  decltype(&::cuStreamWriteValue64) write_value_64 = entry{"cuStreamWriteValue64"};
  decltype(&::cuEventCreate) event_create = entry{"cuEventCreate"};
  decltype(&::cuEventDestroy) event_destroy = entry{"cuEventDestroy"};
  decltype(&::cuEventRecord) event_record = entry{"cuEventRecord"};
  decltype(&::cuEventQuery) event_query = entry{"cuEventQuery"};
  decltype(&::cuEventSynchronize) event_synchronize = entry{"cuEventSynchronize"};
  decltype(&::cuEventElapsedTime) elapsed_time = entry{"cuEventElapsedTime"};
  decltype(&::cuMemAlloc) allocate = entry{"cuMemAlloc"};
  decltype(&::cuMemFree) free = entry{"cuMemFree"};
  decltype(&::cuMemAddressReserve) reserve_addresses = entry{"cuMemAddressReserve"};
  decltype(&::cuMemAddressFree) free_addresses = entry{"cuMemAddressFree"};
  decltype(&::cuMemCreate) create_memory = entry{"cuMemCreate"};
  decltype(&::cuMemRelease) release_memory = entry{"cuMemRelease"};
  decltype(&::cuMemMap) map = entry{"cuMemMap"};
  decltype(&::cuMemUnmap) unmap = entry{"cuMemUnmap"};
  decltype(&::cuMemSetAccess) set_access = entry{"cuMemSetAccess"};
  decltype(&::cuMemGetAccess) get_access = entry{"cuMemGetAccess"};
  decltype(&::cuMemGetAllocationGranularity) granularity = entry{"cuMemGetAllocationGranularity"};
  decltype(&::cuMemGetAllocationPropertiesFromHandle) memory_properties =
      entry{"cuMemGetAllocationPropertiesFromHandle"};
  decltype(&::cuMemRetainAllocationHandle) retain_memory = entry{"cuMemRetainAllocationHandle"};
  decltype(&::cuMemExportToShareableHandle) export_memory = entry{"cuMemExportToShareableHandle"};
  decltype(&::cuMemImportFromShareableHandle) import_memory = entry{"cuMemImportFromShareableHandle"};
  decltype(&::cuDeviceGetAttribute) device_attribute = entry{"cuDeviceGetAttribute"};
  decltype(&::cuMemAllocManaged) allocate_managed = entry{"cuMemAllocManaged"};
  decltype(&::cuMemAllocHost) allocate_host = entry{"cuMemAllocHost"};
  decltype(&::cuMemFreeHost) free_host = entry{"cuMemFreeHost"};
  decltype(&::cuMemHostRegister) register_host = entry{"cuMemHostRegister"};
  decltype(&::cuMemHostUnregister) unregister_host = entry{"cuMemHostUnregister"};
  decltype(&::cuMemAllocAsync) allocate_async = entry{"cuMemAllocAsync"};
  decltype(&::cuMemAllocFromPoolAsync) allocate_from_pool = entry{"cuMemAllocFromPoolAsync"};
  decltype(&::cuMemFreeAsync) free_async = entry{"cuMemFreeAsync"};
  decltype(&::cuMemPoolCreate) pool_create = entry{"cuMemPoolCreate"};
  decltype(&::cuMemPoolDestroy) pool_destroy = entry{"cuMemPoolDestroy"};
  decltype(&::cuMemPoolTrimTo) pool_trim = entry{"cuMemPoolTrimTo"};
  decltype(&::cuMemPoolSetAttribute) pool_set = entry{"cuMemPoolSetAttribute"};
  decltype(&::cuMemPoolGetAttribute) pool_get = entry{"cuMemPoolGetAttribute"};
  decltype(&::cuMemPoolSetAccess) pool_set_access = entry{"cuMemPoolSetAccess"};
  decltype(&::cuMemPoolGetAccess) pool_get_access = entry{"cuMemPoolGetAccess"};
  decltype(&::cuMemGetDefaultMemPool) default_pool_at = entry{"cuMemGetDefaultMemPool"};
  decltype(&::cuMemGetMemPool) pool_at = entry{"cuMemGetMemPool"};
  decltype(&::cuMemSetMemPool) set_pool_at = entry{"cuMemSetMemPool"};
  decltype(&::cuDeviceGetDefaultMemPool) default_pool = entry{"cuDeviceGetDefaultMemPool"};
  decltype(&::cuDeviceGetMemPool) device_pool = entry{"cuDeviceGetMemPool"};
  decltype(&::cuDeviceSetMemPool) set_device_pool = entry{"cuDeviceSetMemPool"};
  decltype(&::cuDeviceCanAccessPeer) can_access_peer = entry{"cuDeviceCanAccessPeer"};
  decltype(&::cuCtxEnablePeerAccess) enable_peer = entry{"cuCtxEnablePeerAccess"};
  decltype(&::cuCtxDisablePeerAccess) disable_peer = entry{"cuCtxDisablePeerAccess"};
  decltype(&::cuMemGetInfo) memory_info = entry{"cuMemGetInfo"};
  decltype(&::cuMemGetAddressRange) address_range = entry{"cuMemGetAddressRange"};
  decltype(&::cuPointerGetAttribute) pointer_attribute = entry{"cuPointerGetAttribute"};
  decltype(&::cuPointerGetAttributes) pointer_attributes = entry{"cuPointerGetAttributes"};
  decltype(&::cuMemcpy) copy = entry{"cuMemcpy"};
  decltype(&::cuMemcpyAsync) copy_async = entry{"cuMemcpyAsync"};
  decltype(&::cuMemcpyPeer) copy_peer = entry{"cuMemcpyPeer"};
  decltype(&::cuMemcpyPeerAsync) copy_peer_async = entry{"cuMemcpyPeerAsync"};
  decltype(&::cuMemcpyHtoDAsync) to_device_async = entry{"cuMemcpyHtoDAsync"};
  decltype(&::cuMemcpyDtoHAsync) to_host_async = entry{"cuMemcpyDtoHAsync"};
  decltype(&::cuMemcpyDtoH) to_host = entry{"cuMemcpyDtoH"};
  decltype(&::cuMemcpyHtoD) to_device = entry{"cuMemcpyHtoD"};
  decltype(&::cuMemsetD8Async) fill_async = entry{"cuMemsetD8Async"};
  decltype(&::cuMemsetD32Async) fill32_async = entry{"cuMemsetD32Async"};
  decltype(&::cuStreamBeginCapture) begin_capture = entry{"cuStreamBeginCapture"};
  decltype(&::cuStreamEndCapture) end_capture = entry{"cuStreamEndCapture"};
  decltype(&::cuStreamIsCapturing) is_capturing = entry{"cuStreamIsCapturing"};
  decltype(&::cuStreamGetCaptureInfo) capture_info = entry{"cuStreamGetCaptureInfo"};
  decltype(&::cuThreadExchangeStreamCaptureMode) exchange_mode = entry{"cuThreadExchangeStreamCaptureMode"};
  decltype(&::cuGraphInstantiate) instantiate = entry{"cuGraphInstantiate"};
  decltype(&::cuGraphLaunch) launch_graph = entry{"cuGraphLaunch"};
  decltype(&::cuGraphGetNodes) graph_nodes = entry{"cuGraphGetNodes"};
  decltype(&::cuModuleLoadData) load_module = entry{"cuModuleLoadData"};
  decltype(&::cuModuleGetFunction) module_function = entry{"cuModuleGetFunction"};
  decltype(&::cuLaunchKernel) launch = entry{"cuLaunchKernel"};
};

/// A test on one or more new devices, with the first one's context current. It fails if there are findings that it has
/// not taken.
class simulated_device : public testing::Test {
protected:
  explicit simulated_device(simulator::options how = stepped_by_hand()) : how_(how) {
    how_.keep_objects = false;
    simulator::load();
  }

  void SetUp() override {
    simulator::reset(how_);
    ASSERT_EQ(cu().init(0), CUDA_SUCCESS);
    ASSERT_EQ(cu().retain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu().set_current(context_), CUDA_SUCCESS);
  }

  void TearDown() override {
    EXPECT_NO_THROW(simulator::expect_silent());
    simulator::reset(how_);
    cu().release(0);
  }

  static simulator::options stepped_by_hand() {
    simulator::options how;
    how.mode = simulator::stepping::manual;
    how.stall_timeout = std::chrono::milliseconds(200);
    how.keep_objects = false;
    return how;
  }

  static driver_functions const& cu() {
    static driver_functions const all;
    return all;
  }

  static CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    EXPECT_EQ(cu().stream_create(&made, flags), CUDA_SUCCESS);
    return made;
  }

  static CUevent new_event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent made = nullptr;
    EXPECT_EQ(cu().event_create(&made, flags), CUDA_SUCCESS);
    return made;
  }

  static char* new_memory(std::size_t bytes) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cu().allocate(&made, bytes), CUDA_SUCCESS);
    return reinterpret_cast<char*>(made);
  }

  static std::uint64_t id_of(CUstream stream) {
    unsigned long long id = 0;
    EXPECT_EQ(cu().stream_id(stream, &id), CUDA_SUCCESS);
    return id;
  }

  /// Takes and returns the only finding.
  static simulator::finding only_finding() {
    auto const found = simulator::take_findings();
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? simulator::finding{} : found.front();
  }

  CUcontext context_ = nullptr;

private:
  simulator::options how_;
};

/// Returns the pointer as a device address.
inline CUdeviceptr address(void const* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
