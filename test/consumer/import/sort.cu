// The device part: compiled by nvcc, against the CCCL that gpumem brings.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>

#include <thrust/execution_policy.h>
#include <thrust/sort.h>

#include <array>

static_assert(CCCL_VERSION >= 3005000, "gpumem's CCCL has to win over the toolkit's");

int use_in_device_code(gpumem::any_pool pool, cuda::stream_ref stream) {
  void* const pointer = pool.allocate(stream, 1 << 20, 256);
  pool.deallocate(stream, pointer, 1 << 20, 256);
  auto const tried = gpumem::try_allocate_erased(pool, stream, 1 << 10);
  if (!tried || gpumem::extend::find_services(pool).table == nullptr) return 1;
  pool.deallocate(stream, *tried, 1 << 10, 256);

  std::array<int, 3> values{3, 1, 2};
  thrust::sort(thrust::host, values.begin(), values.end());
  return pointer != nullptr && values == std::array<int, 3>{1, 2, 3} ? 0 : 1;
}
