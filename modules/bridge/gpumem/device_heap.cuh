// Memory that kernels allocate and free: the functions of heap_view on the device. Needs nvcc 13.0 or newer and devices
// of compute capability 8.0 or newer. Two macros, the same in all files of a program, change the functions:
// GPUMEM_DEVICE_HEAP_CHECKS finds second frees, and GPUMEM_DEVICE_HEAP_PASS_THROUGH calls CUDA's malloc and free, whose
// blocks compute-sanitizer knows. These are aligned to 16 bytes, and the heap does not count them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap_core.hpp>
#include <gpumem/device_heap_host.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#if !defined(__CUDACC_VER_MAJOR__) || __CUDACC_VER_MAJOR__ < 13
#error "<gpumem/device_heap.cuh> needs nvcc 13.0 or newer; <gpumem/device_heap.hpp> has the host's part"
#endif
#if defined(__CUDA_ARCH__)
static_assert(__CUDA_ARCH__ >= 800,
              "gpumem::device_heap needs compute capability 8.0 or newer: compile with -arch=sm_80");
#endif

namespace gpumem {
namespace heap_detail {

// The lanes of a warp of the device.
class device_lanes {
public:
#if defined(GPUMEM_DEVICE_HEAP_CHECKS)
  static constexpr bool checks_frees = true;
#else
  static constexpr bool checks_frees = false;
#endif
  __device__ static std::uint32_t active() { return __activemask(); }
  __device__ static std::uint32_t lane() { return special<0>(); }
  __device__ static std::uint32_t processor() { return special<1>(); }
  // Returns a number that differs between the threads of a multiprocessor.
  __device__ static std::uint32_t noise() {
    return (special<2>() * 32 + lane() + processor() * 2048) * 2654435761u >> 7;
  }
  __device__ static std::uint32_t match(std::uint32_t active, std::uint32_t key) {
    return __match_any_sync(active, key);
  }
  __device__ static std::uint32_t ballot(std::uint32_t active, bool value) { return __ballot_sync(active, value); }
  template <class T> __device__ static T shuffle(std::uint32_t active, T value, std::uint32_t source) {
    return __shfl_sync(active, value, static_cast<int>(source));
  }
  __device__ static std::uint32_t reduce_or(std::uint32_t active, std::uint32_t group, std::uint32_t value) {
    auto const result = __reduce_or_sync(group, value);
    __syncwarp(active);
    return result;
  }
  __device__ static void sync(std::uint32_t active) { __syncwarp(active); }
  __device__ static void pause() { __nanosleep(20); }

  __device__ static std::uint32_t count(std::uint32_t word) { return static_cast<std::uint32_t>(__popc(word)); }
  __device__ static std::uint32_t count(std::uint64_t word) { return static_cast<std::uint32_t>(__popcll(word)); }
  __device__ static std::uint32_t first(std::uint32_t word) {
    return static_cast<std::uint32_t>(__ffs(static_cast<int>(word)) - 1);
  }
  __device__ static std::uint32_t log2_ceiling(std::size_t value) {
    return static_cast<std::uint32_t>(64 - __clzll(static_cast<long long>(value - 1)));
  }

  template <order Order, class T> __device__ static T load(T* address) {
    T result;
    __nv_atomic_load(address, &result, value_of(Order), __NV_THREAD_SCOPE_DEVICE);
    return result;
  }
  // Reads a value that may be stale until the next acquire operation.
  template <class T> __device__ static T peek(T* address) { return __ldca(address); }
  template <order Order, class T> __device__ static void store(T* address, T value) {
    __nv_atomic_store(address, &value, value_of(Order), __NV_THREAD_SCOPE_DEVICE);
  }
  template <order Order, class T> __device__ static T fetch_add(T* address, T value) {
    return __nv_atomic_fetch_add(address, value, value_of(Order), __NV_THREAD_SCOPE_DEVICE);
  }
  template <order Order, class T> __device__ static T fetch_or(T* address, T value) {
    return __nv_atomic_fetch_or(address, value, value_of(Order), __NV_THREAD_SCOPE_DEVICE);
  }
  template <order Order, class T> __device__ static T fetch_and(T* address, T value) {
    return __nv_atomic_fetch_and(address, value, value_of(Order), __NV_THREAD_SCOPE_DEVICE);
  }
  template <order Order, class T> __device__ static T exchange(T* address, T value) {
    T result;
    __nv_atomic_exchange(address, &value, &result, value_of(Order), __NV_THREAD_SCOPE_DEVICE);
    return result;
  }
  template <order Order, class T> __device__ static bool compare_exchange(T* address, T& expected, T value) {
    return __nv_atomic_compare_exchange(address, &expected, &value, false, value_of(Order), __NV_ATOMIC_RELAXED,
                                        __NV_THREAD_SCOPE_DEVICE);
  }
  template <class T> __device__ static void fetch_max(T* address, T value) {
    __nv_atomic_fetch_max(address, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
  }
  __device__ static void clear(std::uint32_t* words, std::uint32_t count) {
    for (std::uint32_t i = 0; i != count; ++i) store<order::relaxed>(words + i, 0u);
  }
  __device__ static void bad_free(void*) {}

private:
  template <int Register> __device__ static std::uint32_t special() {
    std::uint32_t result;
    if constexpr (Register == 0)
      asm volatile("mov.u32 %0, %%laneid;" : "=r"(result));
    else if constexpr (Register == 1)
      asm volatile("mov.u32 %0, %%smid;" : "=r"(result));
    else
      asm volatile("mov.u32 %0, %%warpid;" : "=r"(result));
    return result;
  }
  __device__ static constexpr int value_of(order value) {
    return value == order::relaxed   ? __NV_ATOMIC_RELAXED
           : value == order::acquire ? __NV_ATOMIC_ACQUIRE
           : value == order::release ? __NV_ATOMIC_RELEASE
                                     : __NV_ATOMIC_ACQ_REL;
  }
};

} // namespace heap_detail

#if defined(GPUMEM_DEVICE_HEAP_PASS_THROUGH)
__device__ inline void* heap_view::allocate(std::size_t bytes) const { return bytes == 0 ? nullptr : malloc(bytes); }
__device__ inline void heap_view::deallocate(void* block) const { free(block); }
#else
__device__ inline void* heap_view::allocate(std::size_t bytes) const {
  return heap_detail::heap_core<heap_detail::device_lanes>{*this}.allocate(bytes);
}
__device__ inline void heap_view::deallocate(void* block) const {
  heap_detail::heap_core<heap_detail::device_lanes>{*this}.deallocate(block);
}
#endif
// <gpumem/device_heap.hpp> says what these do.
template <class T, class... Arguments> __device__ T* heap_view::create(Arguments&&... arguments) const {
  static_assert(alignof(T) <= heap_detail::slab_bytes);
  auto* const block = allocate(sizeof(T) < alignof(T) ? alignof(T) : sizeof(T));
  return block == nullptr ? nullptr : new (block) T(std::forward<Arguments>(arguments)...);
}
// The same.
template <class T> __device__ void heap_view::destroy(T* object) const {
  if (object == nullptr) return;
  object->~T();
  deallocate(object);
}

/// An allocator of a heap for containers in kernels. The host can make and copy it, and kernels call its functions.
template <class T> class heap_allocator {
public:
  static_assert(alignof(T) <= heap_detail::slab_bytes);
  /// The type of the objects.
  using value_type = T;
  /// Makes an allocator of the heap.
  __host__ __device__ heap_allocator(heap_view const& heap) noexcept : heap_{heap} {}
  template <class Other>
  __host__ __device__ heap_allocator(heap_allocator<Other> const& other) noexcept : heap_{other.heap()} {}

  /// Returns memory for `count` objects; null if the heap has none, which is counted, or if `count` is 0.
  __device__ T* allocate(std::size_t count) const {
    auto bytes = count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T);
    if (bytes != 0 && bytes < alignof(T)) bytes = alignof(T);
    return static_cast<T*>(heap_.allocate(bytes));
  }
  /// Frees memory that an allocator of the same heap allocated.
  __device__ void deallocate(T* block, std::size_t /*count*/) const { heap_.deallocate(block); }
  /// Returns the heap.
  __host__ __device__ heap_view const& heap() const noexcept { return heap_; }

private:
  heap_view heap_;
};

/// Returns whether the allocators have the same heap.
template <class One, class Other>
__host__ __device__ bool operator==(heap_allocator<One> const& one, heap_allocator<Other> const& other) noexcept {
  return one.heap().metadata() == other.heap().metadata();
}
template <class One, class Other>
__host__ __device__ bool operator!=(heap_allocator<One> const& one, heap_allocator<Other> const& other) noexcept {
  return !(one == other);
}

} // namespace gpumem
