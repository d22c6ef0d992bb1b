// The C++ headers in a program that nvcc builds alone, with the CCCL that comes with it.
// SPDX-License-Identifier: Apache-2.0
#include "../readme/sort.cu" // the README's function

#include <thrust/device_vector.h>

#include <cstdio>

extern "C" {
#include "simulated.h"
}

// Compiled only: the simulated device runs no kernels.
void sort_on_device(CUstream_st* stream, gpumem::pool const& pool) {
  using allocator = gpumem::thrust_allocator<int>;
  thrust::device_vector<int, allocator> values(1000, allocator{stream, pool});
  sort(pool, stream, thrust::raw_pointer_cast(values.data()), thrust::raw_pointer_cast(values.data()) + 1000);
  thrust::sort(gpumem::exec_policy_nosync(stream, pool), values.begin(), values.end());
}

int main(int argc, char**) {
  simulated_reset(1);
  auto* const stream = static_cast<CUstream_st*>(simulated_stream(0));
  gpumem::pool pool{0};
  if (argc > 9) sort_on_device(stream, pool);
  gpumem::thrust_allocator<double> doubles{stream, pool};
  gpumem::thrust_allocator<int> const ints{doubles};
  if (gpumem::thrust_allocator<double>{ints} != doubles) return 1;
  if ((gpumem::thrust_allocator<double>{stream, gpumem::pool{0}} == doubles)) return 1;
  auto const block = doubles.allocate(1000);
  if (pool.statistics().live != 8000) return 1;
  doubles.deallocate(block, 1000);
  std::printf("CCCL %d\n", CCCL_VERSION);
  return pool.statistics().live == 0 && simulated_finish() == 0 ? 0 : 1;
}
