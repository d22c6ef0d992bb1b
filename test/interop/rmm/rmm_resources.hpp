// RMM's adaptors and resources for units that import gpumem: CCCL's types are passed between the two by value.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda/memory_resource>

#include <cstddef>
#include <cstdint>
#include <memory>

using device_memory = cuda::mr::any_resource<cuda::mr::device_accessible>;

/// RMM's statistics adaptor over any resource.
class rmm_statistics {
public:
  struct counts {
    std::int64_t now, peak, total;
    friend bool operator==(counts const&, counts const&) = default;
  };

  explicit rmm_statistics(device_memory upstream);
  ~rmm_statistics();

  /// Returns a resource that shares the counters.
  device_memory resource() const;
  counts bytes() const;
  counts allocations() const;

private:
  struct adaptor;
  std::unique_ptr<adaptor> adaptor_;
};

/// RMM's limiting adaptor: throws rmm::out_of_memory, a std::bad_alloc, beyond `limit` bytes.
device_memory limited_by_rmm(device_memory upstream, std::size_t limit);
/// RMM's resource over cudaMalloc; needs a real device.
device_memory cuda_memory_of_rmm();
/// RMM's pool; needs a real device.
device_memory pool_of_rmm(device_memory upstream, std::size_t initial_size);
