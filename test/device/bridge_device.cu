// The C++ headers over the C library on a GPU: kernels stamp and check memory on two streams, and Thrust sorts in it.
// SPDX-License-Identifier: Apache-2.0
#include "device_checks.cuh"

#include <gpumem/thrust.hpp>

#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstdio>
#include <cstdlib>

__global__ void stamp(int* block, int count, int value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) block[i] = value;
}
__global__ void compare(int const* block, int count, int value, int* wrong) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    if (block[i] != value) atomicAdd(wrong, 1);
  }
}

// Blocks go from stream to stream under a limit that holds two of them.
static void stamps_stay(gpumem::pool& pool, cudaStream_t const (&streams)[2]) {
  constexpr int count = 1 << 20;
  int* wrong = nullptr;
  CHECK(cudaMallocManaged(&wrong, sizeof(int)));
  *wrong = 0;
  for (int round = 0; round < 2000; ++round) {
    auto* const stream = streams[round % 3 % 2];
    auto const block = pool.acquire(stream, count * sizeof(int));
    stamp<<<64, 256, 0, stream>>>(static_cast<int*>(block.data()), count, round);
    compare<<<64, 256, 0, stream>>>(static_cast<int*>(block.data()), count, round, wrong);
  }
  CHECK(cudaDeviceSynchronize());
  REQUIRE(*wrong == 0);
  CHECK(cudaFree(wrong));
}

static void thrust_sorts(gpumem::pool const& pool, cudaStream_t stream) {
  using allocator = gpumem::thrust_allocator<int>;
  thrust::device_vector<int, allocator> values(1 << 20, allocator{stream, pool});
  auto const policy = gpumem::exec_policy(stream, pool);
  thrust::sequence(policy, values.rbegin(), values.rend());
  thrust::sort(policy, values.begin(), values.end());
  for (int const i : {0, 1, 1000, (1 << 20) - 1}) REQUIRE(values[i] == i);
  auto const nosync = gpumem::exec_policy_nosync(stream, pool);
  REQUIRE(thrust::reduce(nosync, values.begin(), values.begin() + 1000) == 999 * 500);
}

int main() {
  cudaStream_t streams[2];
  for (auto& stream : streams) CHECK(cudaStreamCreate(&stream));
  gpumem::pool pool{0, "limit=64MiB"};
  stamps_stay(pool, streams);
  thrust_sorts(pool, streams[0]);
  CHECK(cudaDeviceSynchronize());
  REQUIRE(pool.statistics().live == 0 && pool.statistics().reserved <= (64u << 20));
  void* const on_default = pool.allocate(nullptr, 1 << 20);
  stamp<<<64, 256>>>(static_cast<int*>(on_default), 1000, 1);
  pool.deallocate(nullptr, on_default, 1 << 20);
  CHECK(cudaDeviceSynchronize());
  std::printf("CCCL %d: stamps, Thrust and the default stream are right\n", CCCL_VERSION);
}
