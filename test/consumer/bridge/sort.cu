// The device part: compiled by nvcc, against the CCCL that gpumem brings.
// SPDX-License-Identifier: Apache-2.0
#include <cuda/std/version>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>
#include <array>

static_assert(CCCL_VERSION >= 3005000, "gpumem's CCCL has to win over the toolkit's");

int sort_on_host() {
  std::array<int, 3> values{3, 1, 2};
  thrust::sort(thrust::host, values.begin(), values.end());
  return values == std::array<int, 3>{1, 2, 3} ? 0 : 1;
}
