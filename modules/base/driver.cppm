// The functions of the CUDA driver in a typed table, filled at first use from the libcuda.so.1 that the dynamic linker
// finds.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <string_view>
export module gpumem:driver;
import :process;
import :std;
import :sync;

namespace gpumem {

namespace driver_api {
export struct driver_table;
} // namespace driver_api

namespace detail {
// Set once, when driver_alive() becomes false. Every call of a resource reads it.
inline constinit std::atomic<bool> driver_gone{false};
} // namespace detail

// Every driver function that gpumem calls, as X(member, name): `member` is its name in the table, `name` its plain name
// without a version. The macros of cuda.h replace a plain name by one with a version (cuMemAlloc by cuMemAlloc_v2). The
// table has the type of that version, and cuGetProcAddress returns that version for the plain name.
#define GPUMEM_DRIVER_FUNCTIONS(X)                                                                                     \
  X(init, cuInit)                                                                                                      \
  X(driver_get_version, cuDriverGetVersion)                                                                            \
  X(get_error_name, cuGetErrorName)                                                                                    \
  X(get_error_string, cuGetErrorString)                                                                                \
  X(device_get, cuDeviceGet)                                                                                           \
  X(device_get_count, cuDeviceGetCount)                                                                                \
  X(device_get_attribute, cuDeviceGetAttribute)                                                                        \
  X(device_get_name, cuDeviceGetName)                                                                                  \
  X(device_can_access_peer, cuDeviceCanAccessPeer)                                                                     \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain)                                                               \
  X(ctx_get_current, cuCtxGetCurrent)                                                                                  \
  X(ctx_set_current, cuCtxSetCurrent)                                                                                  \
  X(ctx_push_current, cuCtxPushCurrent)                                                                                \
  X(ctx_pop_current, cuCtxPopCurrent)                                                                                  \
  X(ctx_get_device, cuCtxGetDevice)                                                                                    \
  X(ctx_get_id, cuCtxGetId)                                                                                            \
  X(ctx_synchronize, cuCtxSynchronize)                                                                                 \
  X(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange)                                                        \
  X(stream_create, cuStreamCreate)                                                                                     \
  X(stream_create_with_priority, cuStreamCreateWithPriority)                                                           \
  X(stream_destroy, cuStreamDestroy)                                                                                   \
  X(stream_get_id, cuStreamGetId)                                                                                      \
  X(stream_get_ctx, cuStreamGetCtx)                                                                                    \
  X(stream_get_priority, cuStreamGetPriority)                                                                          \
  X(stream_query, cuStreamQuery)                                                                                       \
  X(stream_synchronize, cuStreamSynchronize)                                                                           \
  X(stream_wait_event, cuStreamWaitEvent)                                                                              \
  X(stream_is_capturing, cuStreamIsCapturing)                                                                          \
  X(stream_get_capture_info, cuStreamGetCaptureInfo)                                                                   \
  X(stream_begin_capture, cuStreamBeginCapture)                                                                        \
  X(stream_end_capture, cuStreamEndCapture)                                                                            \
  X(graph_destroy, cuGraphDestroy)                                                                                     \
  X(graph_node_get_dependencies, cuGraphNodeGetDependencies)                                                           \
  X(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode)                                            \
  X(event_create, cuEventCreate)                                                                                       \
  X(event_destroy, cuEventDestroy)                                                                                     \
  X(event_record, cuEventRecord)                                                                                       \
  X(event_query, cuEventQuery)                                                                                         \
  X(event_synchronize, cuEventSynchronize)                                                                             \
  X(event_elapsed_time, cuEventElapsedTime)                                                                            \
  X(mem_alloc, cuMemAlloc)                                                                                             \
  X(mem_free, cuMemFree)                                                                                               \
  X(mem_alloc_managed, cuMemAllocManaged)                                                                              \
  X(mem_host_alloc, cuMemHostAlloc)                                                                                    \
  X(mem_free_host, cuMemFreeHost)                                                                                      \
  X(mem_alloc_from_pool_async, cuMemAllocFromPoolAsync)                                                                \
  X(mem_free_async, cuMemFreeAsync)                                                                                    \
  X(mem_pool_create, cuMemPoolCreate)                                                                                  \
  X(mem_pool_destroy, cuMemPoolDestroy)                                                                                \
  X(mem_pool_trim_to, cuMemPoolTrimTo)                                                                                 \
  X(mem_pool_set_attribute, cuMemPoolSetAttribute)                                                                     \
  X(mem_pool_get_attribute, cuMemPoolGetAttribute)                                                                     \
  X(mem_pool_set_access, cuMemPoolSetAccess)                                                                           \
  X(mem_pool_get_access, cuMemPoolGetAccess)                                                                           \
  X(device_get_default_mem_pool, cuDeviceGetDefaultMemPool)                                                            \
  X(device_get_mem_pool, cuDeviceGetMemPool)                                                                           \
  X(device_set_mem_pool, cuDeviceSetMemPool)                                                                           \
  X(mem_get_default_mem_pool, cuMemGetDefaultMemPool)                                                                  \
  X(mem_get_info, cuMemGetInfo)                                                                                        \
  X(mem_advise, cuMemAdvise)                                                                                           \
  X(mem_address_reserve, cuMemAddressReserve)                                                                          \
  X(mem_address_free, cuMemAddressFree)                                                                                \
  X(mem_create, cuMemCreate)                                                                                           \
  X(mem_release, cuMemRelease)                                                                                         \
  X(mem_map, cuMemMap)                                                                                                 \
  X(mem_unmap, cuMemUnmap)                                                                                             \
  X(mem_set_access, cuMemSetAccess)                                                                                    \
  X(mem_get_access, cuMemGetAccess)                                                                                    \
  X(mem_get_allocation_granularity, cuMemGetAllocationGranularity)                                                     \
  X(mem_get_allocation_properties_from_handle, cuMemGetAllocationPropertiesFromHandle)                                 \
  X(mem_retain_allocation_handle, cuMemRetainAllocationHandle)                                                         \
  X(mem_export_to_shareable_handle, cuMemExportToShareableHandle)                                                      \
  X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle)                                                  \
  X(memcpy_async, cuMemcpyAsync)                                                                                       \
  X(memcpy_htod_async, cuMemcpyHtoDAsync)                                                                              \
  X(memcpy_dtoh_async, cuMemcpyDtoHAsync)                                                                              \
  X(memcpy_dtod_async, cuMemcpyDtoDAsync)                                                                              \
  X(memcpy_peer_async, cuMemcpyPeerAsync)                                                                              \
  X(memset_d8_async, cuMemsetD8Async)                                                                                  \
  X(memset_d32_async, cuMemsetD32Async)                                                                                \
  X(pointer_get_attributes, cuPointerGetAttributes)                                                                    \
  X(mem_prefetch_async, cuMemPrefetchAsync)                                                                            \
  X(launch_host_func, cuLaunchHostFunc)                                                                                \
  X(module_load_data, cuModuleLoadData)                                                                                \
  X(module_unload, cuModuleUnload)                                                                                     \
  X(module_get_function, cuModuleGetFunction)                                                                          \
  X(launch_kernel, cuLaunchKernel)

namespace detail {
#define GPUMEM_DRIVER_NAME(member, name) #name,
inline constexpr std::string_view driver_function_names[] = {GPUMEM_DRIVER_FUNCTIONS(GPUMEM_DRIVER_NAME)};
#undef GPUMEM_DRIVER_NAME
#define GPUMEM_DRIVER_INDEX(member, name) member,
enum class driver_function : unsigned { GPUMEM_DRIVER_FUNCTIONS(GPUMEM_DRIVER_INDEX) };
#undef GPUMEM_DRIVER_INDEX

// Counts a call of a driver function. There is one counter per function and thread index. Each has a single writer, so
// that counting costs a load and a store.
void count_driver_call(driver_function function) noexcept;

template <class Function> class driver_entry;

template <class... Arguments> class driver_entry<CUresult(Arguments...)> {
public:
  explicit constexpr driver_entry(driver_function function) : number_{function} {}
  driver_entry(driver_entry const&) = delete;
  driver_entry& operator=(driver_entry const&) = delete;

  inline CUresult operator()(Arguments... arguments) const noexcept {
    if (!function_) [[unlikely]]
      return CUDA_ERROR_DEINITIALIZED;
    sync::schedule_point();
    count_driver_call(number_);
    return function_(arguments...);
  }

private:
  friend class driver_loader;
  CUresult (*function_)(Arguments...) = nullptr;
  driver_function number_;
};
} // namespace detail

namespace driver_api {
/// The driver's functions. Each member is callable and counts its calls. Any thread.
export struct driver_table {
#define GPUMEM_DRIVER_MEMBER(member, name)                                                                             \
  detail::driver_entry<decltype(::name)> member{detail::driver_function::member};
  GPUMEM_DRIVER_FUNCTIONS(GPUMEM_DRIVER_MEMBER)
#undef GPUMEM_DRIVER_MEMBER
};
} // namespace driver_api

namespace detail {
// The table of a forked child. It has no functions: every call returns CUDA_ERROR_DEINITIALIZED.
inline constinit driver_table const absent_driver;
// The table in use; null until the driver is loaded.
inline constinit std::atomic<driver_table const*> loaded_driver{nullptr};
driver_table const& load_driver();
} // namespace detail

namespace driver_api {
/// Returns the table. The first call loads and initialises the driver (cuInit). Throws cuda_error if there is no driver
/// or it is too old. In a forked child (see `driver_alive`) its functions return CUDA_ERROR_DEINITIALIZED. Any thread.
export inline driver_table const& driver() {
  auto const* const loaded = detail::loaded_driver.load(std::memory_order_acquire);
  return loaded ? *loaded : detail::load_driver();
}

/// Returns whether driver() would succeed. Loads the driver as driver() does. Never throws.
export bool driver_available() noexcept;

/// Returns the number of driver calls that gpumem has made in this process. Exact while no other thread makes calls.
export std::uint64_t driver_calls() noexcept;

/// Returns the number of calls of the driver function of this name ("cuEventRecord"); 0 if gpumem never calls it.
export std::uint64_t driver_calls(std::string_view name) noexcept;

/// Throws cuda_error with the text `call`, unless the result is success.
export void check(CUresult result, char const* call);

/// Throws cuda_error with the text `call`. After a sticky error the text also says that the process has to be
/// restarted. In a forked child (see `driver_alive`) the status is CUDA_ERROR_DEINITIALIZED, and the text gives the
/// result as a number. To get its name would need a call that could wait for ever in the child.
export [[noreturn]] void throw_cuda_error(CUresult result, char const* call);

/// Returns whether the error is sticky: the context cannot be used any more.
export bool is_sticky(CUresult error) noexcept;

/// Returns false in two cases:
/// - the process is exiting, and no CUDA call may be made any more;
/// - the process is a child that was forked after gpumem had been used. Such a child cannot use gpumem.
/// In such a child no call takes a lock. A call that makes something (memory, a pool, a stream, an event, an executor),
/// waits or asks the driver throws cuda_error with CUDA_ERROR_DEINITIALIZED. If the call is noexcept, it fails with
/// outcome::device_lost. Every other call, also a free and a destructor, does nothing and returns zeros. A child that
/// is forked before the first use of gpumem can use it.
export inline bool driver_alive() noexcept { return !detail::driver_gone.load(std::memory_order_relaxed); }
} // namespace driver_api

namespace detail {
/// Throws cuda_error in a forked child (see `driver_alive`). Every function that makes something calls this first.
export void throw_if_child();

// While an object of this class lives, this thread's calls, such as queries of events, do not end a capture that
// another thread has begun in global mode.
export class relaxed_capture {
public:
  relaxed_capture() { driver().thread_exchange_stream_capture_mode(&mode_); }
  ~relaxed_capture() { driver().thread_exchange_stream_capture_mode(&mode_); }
  relaxed_capture(relaxed_capture const&) = delete;
  relaxed_capture& operator=(relaxed_capture const&) = delete;

private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

template <class Visitor> void visit_entries(driver_table& table, Visitor visit) {
#define GPUMEM_DRIVER_VISIT(member, name) visit(table.member, #name);
  GPUMEM_DRIVER_FUNCTIONS(GPUMEM_DRIVER_VISIT)
#undef GPUMEM_DRIVER_VISIT
}

// Registers a function that runs at process exit, before the driver shuts down. Functions run in reverse order of their
// registration. They do not run in forked children. The function must end within a bounded time.
void at_driver_exit(void (*function)() noexcept);
} // namespace detail

} // namespace gpumem
