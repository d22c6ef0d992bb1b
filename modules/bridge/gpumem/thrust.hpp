// Thrust over any resource: an allocator and an execution policy, for .cu files and for host systems of Thrust.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/cccl.hpp>
#include <gpumem/make_pool.hpp>
#include <gpumem/services.hpp>

#include <thrust/detail/execute_with_allocator.h>
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>

#include <cstddef>
#include <limits>
#include <new>
#include <utility>

#if defined(__CUDACC__)
#include <thrust/system/cuda/execution_policy.h>

#include <cuda_runtime_api.h>
// Thrust's containers call allocators from __host__ __device__ functions; these allocators run only on the host.
#define GPUMEM_DETAIL_UNCHECKED _Pragma("nv_exec_check_disable")
#define GPUMEM_DETAIL_BOTH_SIDES __host__ __device__
#else
#define GPUMEM_DETAIL_UNCHECKED
#define GPUMEM_DETAIL_BOTH_SIDES
#endif

namespace gpumem {

/// The resource that a thrust_allocator holds: any whose memory Thrust's device system can access.
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
using thrust_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;
#else
using thrust_resource = cuda::mr::any_resource<cuda::mr::host_accessible>;
#endif

/// An allocator over a resource, for thrust::device_vector and Thrust's policies. Memory is valid in the order of a
/// stream and aligned to 256 bytes. Holds a copy of the resource, which copies of the allocator share. Throws what the
/// resource throws, and std::bad_array_new_length. `Pointer` is a parameter so that the instances of nvcc and of the
/// host compiler have different names: Thrust's own types differ between them.
template <class T, class Pointer = thrust::device_ptr<T>> class thrust_allocator {
public:
  using value_type = T;
  using pointer = Pointer;
  using const_pointer = thrust::device_ptr<T const>;
  using reference = thrust::device_reference<T>;
  using const_reference = thrust::device_reference<T const>;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_copy_assignment = cuda::std::true_type;
  using propagate_on_container_move_assignment = cuda::std::true_type;
  using propagate_on_container_swap = cuda::std::true_type;
  using is_always_equal = cuda::std::false_type;
  template <class U> struct rebind {
    using other = thrust_allocator<U, thrust::device_ptr<U>>;
  };

  /// Uses memory of the device that is current now: later calls make that device current if it is not.
  thrust_allocator(cuda::stream_ref stream, thrust_resource resource)
      : stream_{stream}, resource_{std::move(resource)}, device_{current()} {}

  // NOLINTBEGIN(modernize-use-equals-default): nvcc ignores __host__ __device__ on defaulted functions, as CUDA
  // documents
  GPUMEM_DETAIL_UNCHECKED
  GPUMEM_DETAIL_BOTH_SIDES thrust_allocator(thrust_allocator const& other)
      : stream_{other.stream_}, resource_{other.resource_}, device_{other.device_} {}
  GPUMEM_DETAIL_UNCHECKED
  template <class U, class P>
  GPUMEM_DETAIL_BOTH_SIDES thrust_allocator(thrust_allocator<U, P> const& other)
      : stream_{other.stream()}, resource_{other.resource()}, device_{other.device()} {}
  GPUMEM_DETAIL_UNCHECKED
  GPUMEM_DETAIL_BOTH_SIDES thrust_allocator& operator=(thrust_allocator const& other) {
    stream_ = other.stream_;
    resource_ = other.resource_;
    device_ = other.device_;
    return *this;
  }
  GPUMEM_DETAIL_UNCHECKED
  GPUMEM_DETAIL_BOTH_SIDES ~thrust_allocator() {}
  // NOLINTEND(modernize-use-equals-default)

  pointer allocate(size_type count) {
    if (count > (std::numeric_limits<size_type>::max)() / sizeof(T)) throw std::bad_array_new_length{};
    on_device const scope{device_};
    return pointer{static_cast<T*>(resource_.allocate(stream_, count * sizeof(T), alignment))};
  }
  void deallocate(pointer block, size_type count) noexcept {
    on_device const scope{device_};
    resource_.deallocate(stream_, thrust::raw_pointer_cast(block), count * sizeof(T), alignment);
  }

  cuda::stream_ref stream() const noexcept { return stream_; }
  thrust_resource const& resource() const noexcept { return resource_; }
  int device() const noexcept { return device_; }

  friend bool operator==(thrust_allocator const& a, thrust_allocator const& b) {
    return a.stream_ == b.stream_ && a.resource_ == b.resource_;
  }
  friend bool operator!=(thrust_allocator const& a, thrust_allocator const& b) { return !(a == b); }

private:
  static constexpr size_type alignment = 256;

#if defined(__CUDACC__)
  static int current() noexcept {
    int device = -1;
    return cudaGetDevice(&device) == cudaSuccess ? device : -1;
  }
  class on_device {
  public:
    explicit on_device(int wanted) noexcept : before_{current()}, changed_{wanted >= 0 && wanted != before_} {
      if (changed_) cudaSetDevice(wanted);
    }
    on_device(on_device const&) = delete;
    on_device& operator=(on_device const&) = delete;
    ~on_device() {
      if (changed_ && before_ >= 0) cudaSetDevice(before_);
    }

  private:
    int before_;
    bool changed_;
  };
#else
  static int current() noexcept { return -1; }
  struct on_device {
    explicit on_device(int) noexcept {}
  };
#endif

  cuda::stream_ref stream_;
  thrust_resource resource_;
  int device_;
};

#if defined(__CUDACC__) && THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
/// Returns a policy that runs Thrust's algorithms on the stream, with temporary memory from the resource. Each
/// algorithm waits on the host for its end.
inline auto exec_policy(cuda::stream_ref stream, thrust_resource resource) {
  return thrust::cuda::par(thrust_allocator<char>{stream, std::move(resource)}).on(stream.get());
}

/// The same, but algorithms that need not wait on the host do not wait.
inline auto exec_policy_nosync(cuda::stream_ref stream, thrust_resource resource) {
  return thrust::cuda::par_nosync(thrust_allocator<char>{stream, std::move(resource)}).on(stream.get());
}
#endif

} // namespace gpumem
