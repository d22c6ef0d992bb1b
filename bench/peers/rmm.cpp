// RMM's pool, arena and binning resources, and adaptors over its pool, as peers. Compiled with RMM's own headers and
// the CCCL that comes with RMM.
// SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/callback_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/logging_resource_adaptor.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <utility>

namespace {

constexpr std::size_t initial_pool = std::size_t{256} << 20;

// cudaMalloc with a count of the peak bytes. Its calls take tens of microseconds, so the cost of counting is
// negligible.
struct counted_device {
  rmm::mr::cuda_memory_resource upstream;
  std::atomic<std::size_t> now{0}, peak{0};

  void* allocate(std::size_t bytes, cuda::stream_ref stream) {
    auto* const got = upstream.allocate(stream, bytes, 256);
    auto const reached = now += bytes;
    auto seen = peak.load();
    while (seen < reached && !peak.compare_exchange_weak(seen, reached)) {}
    return got;
  }
  void deallocate(void* pointer, std::size_t bytes, cuda::stream_ref stream) {
    upstream.deallocate(stream, pointer, bytes, 256);
    now -= bytes;
  }
  rmm::mr::callback_memory_resource resource() {
    return {[this](std::size_t bytes, cuda::stream_ref stream, void*) { return allocate(bytes, stream); },
            [this](void* p, std::size_t bytes, cuda::stream_ref stream, void*) { deallocate(p, bytes, stream); }};
  }
};

struct pool_over_device {
  using type = rmm::mr::pool_memory_resource;
  static type over(counted_device& device) { return type{device.resource(), initial_pool}; }
};
struct arena_over_device {
  using type = rmm::mr::arena_memory_resource;
  static type over(counted_device& device) { return type{device.resource()}; }
};
struct binning_over_pool {
  using type = rmm::mr::binning_memory_resource;
  static type over(counted_device& device) { return type{pool_over_device::over(device), 18, 22}; }
};

// Adaptors over the pool.
struct statistics_over_pool {
  using type = rmm::mr::statistics_resource_adaptor;
  static type over(counted_device& device) { return type{pool_over_device::over(device)}; }
};
struct tracking_over_pool {
  using type = rmm::mr::tracking_resource_adaptor;
  static type over(counted_device& device) { return type{pool_over_device::over(device)}; }
};
struct logging_over_pool {
  using type = rmm::mr::logging_resource_adaptor;
  static type over(counted_device& device) { return type{pool_over_device::over(device), "/dev/null"}; }
};

template <class Kind> struct subject {
  counted_device device;
  typename Kind::type resource = Kind::over(device);
};

template <class Kind> void* make(int) {
  try {
    return new subject<Kind>;
  } catch (std::exception const&) { return nullptr; }
}
template <class Kind> void destroy(void* self) { delete static_cast<subject<Kind>*>(self); }
template <class Kind> void* allocate(void* self, std::size_t bytes, CUstream stream) {
  try {
    return static_cast<subject<Kind>*>(self)->resource.allocate(cuda::stream_ref{stream}, bytes, 256);
  } catch (std::exception const&) { return nullptr; }
}
template <class Kind> void deallocate(void* self, void* pointer, std::size_t bytes, CUstream stream) {
  static_cast<subject<Kind>*>(self)->resource.deallocate(cuda::stream_ref{stream}, pointer, bytes, 256);
}
template <class Kind> std::size_t peak_reserved(void* self) { return static_cast<subject<Kind>*>(self)->device.peak; }

template <class Kind> constexpr gpumem_peer peer(char const* name) {
  return {name, make<Kind>, destroy<Kind>, allocate<Kind>, deallocate<Kind>, peak_reserved<Kind>};
}

constexpr gpumem_peer peers[] = {peer<pool_over_device>("rmm_pool"),
                                 peer<arena_over_device>("rmm_arena"),
                                 peer<binning_over_pool>("rmm_binning"),
                                 peer<statistics_over_pool>("rmm_pool_statistics"),
                                 peer<tracking_over_pool>("rmm_pool_tracking"),
                                 peer<logging_over_pool>("rmm_pool_logging")};

} // namespace

gpumem_peer const* gpumem_bench_peers(std::size_t* count) {
  *count = std::size(peers);
  return peers;
}
