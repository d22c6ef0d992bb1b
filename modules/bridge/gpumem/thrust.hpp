// Thrust over any resource: an allocator and an execution policy, for .cu files and for host systems of Thrust. C++17.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/pool.hpp>

#include <thrust/detail/execute_with_allocator.h>
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>
#include <utility>

#if defined(__CUDACC__)
#include <thrust/system/cuda/execution_policy.h>

#include <cuda_runtime_api.h>
// Thrust's containers call allocators from __host__ __device__ functions. The allocators here run only on the host, so
// nvcc's check of such calls is disabled.
#define GPUMEM_DETAIL_UNCHECKED _Pragma("nv_exec_check_disable")
#define GPUMEM_DETAIL_BOTH_SIDES __host__ __device__
#else
#define GPUMEM_DETAIL_UNCHECKED
#define GPUMEM_DETAIL_BOTH_SIDES
#endif

namespace gpumem {
namespace detail {

/// Interface to the resource of a thrust_allocator; the type of the resource is erased.
class thrust_memory {
public:
  thrust_memory() = default;
  thrust_memory(thrust_memory const&) = delete;
  thrust_memory& operator=(thrust_memory const&) = delete;
  virtual ~thrust_memory() = default;
  virtual void* allocate(CUstream_st* stream, std::size_t bytes) = 0;
  virtual void deallocate(CUstream_st* stream, void* pointer, std::size_t bytes) noexcept = 0;
  virtual bool equals(thrust_memory const& other) const = 0;
};

template <class Resource> class held_thrust_memory final : public thrust_memory {
public:
  explicit held_thrust_memory(Resource resource) : resource_{std::move(resource)} {
#if defined(GPUMEM_DETAIL_WITH_MEMORY_RESOURCE)
    require_value(resource_);
#endif
  }
  void* allocate(CUstream_st* stream, std::size_t bytes) override {
    return resource_.allocate(stream, bytes, GPUMEM_ALIGNMENT);
  }
  void deallocate(CUstream_st* stream, void* pointer, std::size_t bytes) noexcept override {
    resource_.deallocate(stream, pointer, bytes, GPUMEM_ALIGNMENT);
  }
  bool equals(thrust_memory const& other) const override {
    return typeid(other) == typeid(*this) && static_cast<held_thrust_memory const&>(other).resource_ == resource_;
  }

private:
  Resource resource_;
};

/// Whether Thrust's device system can access the memory of the resource. True for class `pool`, which knows its kind of
/// memory only at run time.
#if defined(GPUMEM_DETAIL_WITH_MEMORY_RESOURCE)
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
using thrust_accessible = cuda::mr::device_accessible;
#else
using thrust_accessible = cuda::mr::host_accessible;
#endif
template <class Resource>
inline constexpr bool serves_thrust =
    std::is_same<Resource, pool>::value || cuda::has_property<Resource, thrust_accessible>;
#else
template <class Resource> inline constexpr bool serves_thrust = true;
#endif

} // namespace detail

/// An allocator over a resource, for thrust::device_vector and Thrust's policies. The resource is a `pool`, or any
/// resource of gpumem or CCCL that Thrust's device system can access. Memory is valid in the order of a stream and
/// aligned to 256 bytes. The allocator holds a copy of the resource; copies of the allocator share this copy. Throws
/// what the resource throws, and std::bad_array_new_length.
///
/// `Pointer` is a parameter only because Thrust's own types differ between nvcc and the host compiler: so the instances
/// of both compilers have different names.
template <class T, class Pointer = thrust::device_ptr<T>> class thrust_allocator {
public:
  /// Types that containers expect of an allocator.
  using value_type = T;
  using pointer = Pointer;
  using const_pointer = thrust::device_ptr<T const>;
  using reference = thrust::device_reference<T>;
  using const_reference = thrust::device_reference<T const>;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;
  /// Gives containers the allocator for elements of another type.
  template <class U> struct rebind {
    /// The allocator for elements of type U.
    using other = thrust_allocator<U, thrust::device_ptr<U>>;
  };

  /// Makes an allocator for the device that is current now. The allocator's later calls make that device current while
  /// they run. Throws std::invalid_argument for a type-erased resource that is empty.
  template <class Resource>
  thrust_allocator(stream_handle stream, Resource resource)
      : stream_{static_cast<CUstream_st*>(stream.value())},
        memory_{std::make_shared<detail::held_thrust_memory<Resource>>(std::move(resource))}, device_{current()} {
    static_assert(detail::serves_thrust<Resource>, "Thrust's device system cannot access the memory of this resource");
  }

  // NOLINTBEGIN(modernize-use-equals-default): nvcc ignores __host__ __device__ on defaulted functions, as CUDA
  // documents
  /// Makes an allocator without a resource, for the members of containers that make an empty container first. Its
  /// allocate() throws std::invalid_argument. A container takes over the allocator of another one by assignment.
  GPUMEM_DETAIL_UNCHECKED
  GPUMEM_DETAIL_BOTH_SIDES thrust_allocator() : stream_{nullptr}, memory_{}, device_{-1} {}
  GPUMEM_DETAIL_UNCHECKED
  GPUMEM_DETAIL_BOTH_SIDES thrust_allocator(thrust_allocator const& other)
      : stream_{other.stream_}, memory_{other.memory_}, device_{other.device_} {}
  GPUMEM_DETAIL_UNCHECKED
  template <class U, class P>
  GPUMEM_DETAIL_BOTH_SIDES thrust_allocator(thrust_allocator<U, P> const& other)
      : stream_{other.stream_}, memory_{other.memory_}, device_{other.device_} {}
  GPUMEM_DETAIL_UNCHECKED
  GPUMEM_DETAIL_BOTH_SIDES thrust_allocator& operator=(thrust_allocator const& other) {
    stream_ = other.stream_;
    memory_ = other.memory_;
    device_ = other.device_;
    return *this;
  }
  GPUMEM_DETAIL_UNCHECKED
  GPUMEM_DETAIL_BOTH_SIDES ~thrust_allocator() {}
  // NOLINTEND(modernize-use-equals-default)

  /// Allocates uninitialised elements. Work that is enqueued on the stream from now on may use them.
  [[nodiscard]] pointer allocate(size_type count) {
    if (count > (std::numeric_limits<size_type>::max)() / sizeof(T)) throw std::bad_array_new_length{};
    if (!memory_) throw std::invalid_argument{"gpumem: a thrust_allocator that was made without a resource"};
    on_device const scope{device_};
    return pointer{static_cast<T*>(memory_->allocate(stream_, count * sizeof(T)))};
  }
  /// Frees in the order of the stream.
  void deallocate(pointer block, size_type count) noexcept {
    on_device const scope{device_};
    memory_->deallocate(stream_, thrust::raw_pointer_cast(block), count * sizeof(T));
  }

  CUstream_st* stream() const noexcept { return stream_; }
  /// Returns the ordinal of the device; -1 on the host systems of Thrust.
  int device() const noexcept { return device_; }

  template <class U, class P> friend bool operator==(thrust_allocator const& a, thrust_allocator<U, P> const& b) {
    return a.is_equal(b);
  }
  template <class U, class P> friend bool operator!=(thrust_allocator const& a, thrust_allocator<U, P> const& b) {
    return !a.is_equal(b);
  }

private:
  template <class U, class P> friend class thrust_allocator;
  template <class U, class P> bool is_equal(thrust_allocator<U, P> const& b) const {
    bool const both = memory_ && b.memory_;
    return stream_ == b.stream_ && device_ == b.device_ &&
           (memory_ == b.memory_ || (both && memory_->equals(*b.memory_)));
  }

#if defined(__CUDACC__)
  static int current() noexcept {
    int device = -1;
    return cudaGetDevice(&device) == cudaSuccess ? device : -1;
  }
  class on_device {
  public:
    explicit on_device(int device) noexcept : before_{current()}, changed_{device >= 0 && device != before_} {
      if (changed_) cudaSetDevice(device);
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

  CUstream_st* stream_;
  std::shared_ptr<detail::thrust_memory> memory_;
  int device_;
};

#if defined(__CUDACC__) && THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
/// Returns a policy that runs Thrust's algorithms on the stream, with temporary memory from the resource. Each
/// algorithm returns only after its work is complete.
template <class Resource> auto exec_policy(stream_handle stream, Resource resource) {
  thrust_allocator<char> const allocator{stream, std::move(resource)};
  return thrust::cuda::par(allocator).on(allocator.stream());
}

/// Returns a policy like exec_policy(), but algorithms that need not wait on the host do not wait.
template <class Resource> auto exec_policy_nosync(stream_handle stream, Resource resource) {
  thrust_allocator<char> const allocator{stream, std::move(resource)};
  return thrust::cuda::par_nosync(allocator).on(allocator.stream());
}
#endif

} // namespace gpumem
