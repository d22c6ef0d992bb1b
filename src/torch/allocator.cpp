// PyTorch's allocator over gpumem: allocation, free, and whether it is enabled.
// SPDX-License-Identifier: Apache-2.0
#include "allocator.hpp"
#include "settings.hpp"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>

namespace gpumem_torch {
namespace {

using c10::cuda::CUDAStream;

// Frees a block; the deleter of all blocks. PyTorch compares deleters to find out which allocator made a tensor.
// Tensors keep this deleter when the allocator is disabled.
void delete_block(void* pointer) { allocator::instance().free(pointer); }

// Returns the current device. c10::cuda::current_device() also looks for assertions that failed in kernels, which takes
// as long as the question itself.
DeviceIndex current_device() {
  DeviceIndex device = -1;
  auto const asked = c10::cuda::GetDevice(&device);
  if (C10_UNLIKELY(asked != cudaSuccess)) C10_CUDA_CHECK(asked);
  return device;
}

// Returns what this allocator promises gpumem about a stream and its handle. PyTorch never destroys its own streams, so
// they live as long as the process. A stream whose id is its handle is not PyTorch's, and may end earlier.
int promises_of(CUDAStream stream, cudaStream_t handle) {
  bool const outside = stream.id() == static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(handle));
  return outside ? 0 : GPUMEM_TORCH_STREAM_LIVES;
}

bool caching_disabled() {
  auto const set = [](char const* name) {
    auto const* const text = std::getenv(name);
    return text && std::strcmp(text, "1") == 0;
  };
  return set("PYTORCH_NO_CUDA_MEMORY_CACHING") || set("PYTORCH_NO_HIP_MEMORY_CACHING");
}

void trace_allocation(void* pointer) {
  auto const* const trace = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(trace != nullptr))
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(pointer));
}

void trace_free(void* pointer) {
  auto const* const trace = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(trace != nullptr))
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(pointer));
}

// The deleter of memory that was allocated while the allocator was disabled.
void delete_uncached(void* pointer) {
  trace_free(pointer);
  C10_CUDA_CHECK(cudaFree(pointer));
}

} // namespace

allocator& allocator::instance() {
  static auto* const one = new allocator;
  return *one;
}

allocator::allocator() : enabled_{!caching_disabled()}, process_{getpid()} {
  gpumem_torch_observe_pages(&allocator::tell_pages);
}

bool allocator::forked() const { return getpid() != process_; }

void check(gpumem_outcome outcome) { TORCH_CHECK(outcome == GPUMEM_GRANTED, gpumem_last_error()); }

void allocator::check_device(DeviceIndex device) const {
  TORCH_CHECK(device >= 0 && device < devices_.load(), "Allocator not initialized for device ",
              static_cast<std::int16_t>(device), ": did you call init?");
}

c10::DataPtr allocator::allocate(std::size_t bytes) {
  constexpr std::size_t exabyte = std::size_t{1} << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < exabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
  auto const device = current_device();
  void* pointer = nullptr;
  auto deleter = &delete_block;
  if (!isEnabled()) {
    C10_CUDA_CHECK(cudaMalloc(&pointer, bytes));
    trace_allocation(pointer);
    deleter = &delete_uncached;
  } else if (bytes > 0) {
    pointer = malloc_on_current(bytes, device);
  }
  return {pointer, pointer, deleter, c10::Device(c10::DeviceType::CUDA, device)};
}

c10::DeleterFnPtr allocator::raw_deleter() const { return isEnabled() ? &delete_block : &delete_uncached; }

void* allocator::raw_alloc(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (!isEnabled()) return raw_alloc_with_stream(bytes, nullptr);
  return malloc_on_current(bytes, current_device());
}

void* allocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  if (isEnabled()) {
    auto const device = current_device();
    auto const now = c10::cuda::getCurrentCUDAStream(device);
    auto const promises = now.stream() == stream ? promises_of(now, stream) : 0;
    return malloc(bytes, device, stream, promises + GPUMEM_TORCH_DEVICE_CURRENT);
  }
  void* pointer = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&pointer, bytes));
  return pointer;
}

void* allocator::malloc_on_current(std::size_t bytes, DeviceIndex device) {
  auto const stream = c10::cuda::getCurrentCUDAStream(device);
  auto const handle = stream.stream();
  return malloc(bytes, device, handle, promises_of(stream, handle) + GPUMEM_TORCH_DEVICE_CURRENT);
}

void* allocator::malloc(std::size_t bytes, DeviceIndex device, cudaStream_t stream, int promises) {
  auto* const pointer = C10_UNLIKELY(history_.active()) ? malloc_recorded(bytes, device, stream, promises)
                                                        : malloc_unrecorded(bytes, device, stream, promises);
  trace_allocation(pointer);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled()))
    report(pointer, static_cast<std::int64_t>(rounded(room_for(bytes))), device);
  return pointer;
}

void* allocator::malloc_unrecorded(std::size_t bytes, DeviceIndex device, cudaStream_t stream, int promises) {
  void* pointer = nullptr;
  auto const outcome = gpumem_torch_allocate_rounded_block(bytes, room_for(bytes), device, stream, promises, &pointer);
  if (C10_LIKELY(outcome == GPUMEM_GRANTED)) return pointer;
  if (outcome != GPUMEM_EXHAUSTED && outcome != GPUMEM_TOO_LARGE) check(outcome);
  return retry(bytes, device, stream, promises);
}

void allocator::raw_delete(void* pointer) { isEnabled() ? free(pointer) : delete_uncached(pointer); }

void allocator::free(void* pointer) {
  if (!pointer) return;
  trace_free(pointer);
  bool const profiled = c10::memoryProfilingEnabled();
  bool const told = history_.active();
  auto device = DeviceIndex{0};
  if (C10_UNLIKELY(profiled || told)) {
    if (forked()) return; // the memory belongs to the parent process
    if (told) tell_freed(pointer);
    if (profiled) device = device_of(pointer);
  }
  std::size_t bytes = 0;
  auto const outcome = gpumem_torch_free_block(pointer, &bytes);
  TORCH_CHECK(outcome != GPUMEM_INVALID_ARGUMENT, "invalid device pointer: ", pointer, " (", gpumem_last_error(), ")");
  if (C10_UNLIKELY(outcome != GPUMEM_GRANTED)) // a warning, since destructors of tensors cannot throw
    TORCH_WARN("gpumem keeps the memory at ", pointer, ": ", gpumem_last_error());
  if (C10_UNLIKELY(profiled)) report(pointer, -static_cast<std::int64_t>(rounded(bytes)), device);
}

void allocator::recordStream(c10::DataPtr const& data, CUDAStream stream) {
  // Memory that this allocator has not made, such as that of another process, has another deleter and is ignored.
  if (!data.get() || data.get_deleter() != &delete_block) return;
  auto const handle = stream.stream();
  check(gpumem_torch_record_block_use(data.get(), handle, stream.device_index(), promises_of(stream, handle)));
}

void allocator::copy_data(void* target, void const* source, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToDevice));
}

void allocator::init(int device_count) {
  TORCH_CHECK(device_count <= max_devices, "gpumem serves at most ", max_devices, " devices");
  auto known = devices_.load();
  while (known < device_count && !devices_.compare_exchange_weak(known, device_count)) {}
#if GPUMEM_TORCH_AT_LEAST(10)
  auto const fraction = torch_cuda::CUDAAllocatorConfig::per_process_memory_fraction();
  for (; known < device_count && fraction < 1; ++known) setMemoryFraction(fraction, static_cast<DeviceIndex>(known));
#endif
}

bool allocator::initialized() { return devices_.load() > 0; }

void allocator::enable(bool value) { enabled_.store(value); }

bool allocator::isEnabled() const { return enabled_.load(std::memory_order_relaxed); }

double allocator::getMemoryFraction(DeviceIndex device) {
  check_device(device);
  return states_[device].fraction.load();
}

void allocator::setMemoryFraction(double fraction, DeviceIndex device) {
  check_device(device);
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
  check(gpumem_torch_set_memory_fraction(fraction, device));
  states_[device].fraction.store(fraction);
}

} // namespace gpumem_torch

namespace {

// Sets the allocator in libtorch_cuda.so, which Python asks for the allocator. Returns false if that library is not
// loaded or lacks the function: a C++ program may use only PyTorch's core library, c10.
bool tell_python(std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> const& allocator) {
  using change = void (*)(std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> const&);
  auto* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return false;
  auto const function = reinterpret_cast<change>(
      dlsym(library, "_ZN5torch4cuda22CUDAPluggableAllocator22changeCurrentAllocatorERKSt10shared_ptrIN3c104cuda20"
                     "CUDACachingAllocator13CUDAAllocatorEE"));
  if (function) function(allocator);
  dlclose(library);
  return function != nullptr;
}

thread_local std::string failure;

} // namespace

/// Makes gpumem PyTorch's allocator. Returns null on success. Otherwise returns the text of the failure, for instance
/// if PyTorch has used its own allocator already.
extern "C" __attribute__((visibility("default"))) char const* gpumem_torch_install_allocator() noexcept {
  namespace torch_cuda = c10::cuda::CUDACachingAllocator;
  try {
    auto& allocator = gpumem_torch::allocator::instance();
    auto* const current = torch_cuda::get();
    if (current == &allocator) return nullptr;
    TORCH_CHECK(!current->initialized(), "PyTorch has used CUDA already: install gpumem before its first use of a GPU");
    gpumem_torch::read_settings();
    std::shared_ptr<torch_cuda::CUDAAllocator> const shared{&allocator, [](auto*) {}}; // never destroys the allocator
    if (!tell_python(shared)) torch_cuda::allocator.store(&allocator);
    // torch.accelerator uses the allocator of the highest priority. PyTorch's own has priority 0 up to version 2.11,
    // and 1 in 2.15.
    c10::SetAllocator(c10::DeviceType::CUDA, &allocator, std::numeric_limits<std::uint8_t>::max());
    return nullptr;
  } catch (c10::Error const& error) { failure = error.what_without_backtrace(); } catch (std::exception const& error) {
    failure = error.what();
  }
  return failure.c_str();
}

/// Returns the version of PyTorch for which this library was built.
extern "C" __attribute__((visibility("default"))) char const* gpumem_torch_built_for() noexcept {
  return TORCH_VERSION;
}
