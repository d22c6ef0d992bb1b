// The C++ headers over the C library on a GPU: kernels stamp and check memory on two streams and in graphs, and
// Thrust sorts in it.
// SPDX-License-Identifier: Apache-2.0
#include "device_checks.cuh"

#include <gpumem/graph_memory.hpp>
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

// Layers of temporary blocks, captured on one stream in a branch beside another one.
static cudaGraph_t capture_layers(gpumem::pool& pool, gpumem::graph_memory& memory, cudaStream_t stream,
                                  cudaStream_t side, int value, int* wrong) {
  constexpr int count = 1 << 20;
  cudaEvent_t fork = nullptr, join = nullptr;
  for (auto* const event : {&fork, &join}) CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  auto const scope = memory.capture(stream);
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  for (int layer = 0; layer < 8; ++layer) {
    CHECK(cudaEventRecord(fork, stream));
    CHECK(cudaStreamWaitEvent(side, fork, 0));
    for (auto* const each : {stream, side}) {
      auto const block = pool.acquire(each, count * sizeof(int));
      auto* const data = static_cast<int*>(block.data());
      int const mark = value + 2 * layer + (each == side);
      stamp<<<64, 256, 0, each>>>(data, count, mark);
      compare<<<64, 256, 0, each>>>(data, count, mark, wrong);
    }
    CHECK(cudaEventRecord(join, side));
    CHECK(cudaStreamWaitEvent(stream, join, 0));
  }
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph));
  for (auto* const event : {fork, join}) CHECK(cudaEventDestroy(event));
  return graph;
}

// Two graphs of one memory, launched in another order than that of their captures, and updated by a later capture.
static void graphs_share_memory(gpumem::pool& pool, cudaStream_t const (&streams)[2]) {
  int* wrong = nullptr;
  CHECK(cudaMallocManaged(&wrong, sizeof(int)));
  *wrong = 0;
  gpumem::graph_memory memory{pool};
  cudaGraphExec_t runs[2];
  for (int i : {0, 1}) {
    auto* const graph = capture_layers(pool, memory, streams[i], streams[1 - i], 100 * i, wrong);
    CHECK(cudaGraphInstantiate(&runs[i], graph, 0));
    CHECK(cudaGraphDestroy(graph));
  }
  auto const kept = memory.bytes();
  REQUIRE(kept > 0 && kept <= (16u << 20));
  for (int round = 0; round < 100; ++round) {
    CHECK(cudaGraphLaunch(runs[round % 3 == 0], streams[0]));
    auto const between = pool.acquire(streams[0], 1 << 20);
    stamp<<<64, 256, 0, streams[0]>>>(static_cast<int*>(between.data()), 1 << 18, -1);
    if (round % 10 != 9) continue;
    auto* const graph = capture_layers(pool, memory, streams[0], streams[1], 1000 * round, wrong);
    cudaGraphExecUpdateResultInfo seen{};
    CHECK(cudaGraphExecUpdate(runs[0], graph, &seen));
    CHECK(cudaGraphDestroy(graph));
  }
  CHECK(cudaDeviceSynchronize());
  REQUIRE(*wrong == 0 && memory.bytes() == kept);
  for (auto* const each : runs) CHECK(cudaGraphExecDestroy(each));
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
  graphs_share_memory(pool, streams);
  thrust_sorts(pool, streams[0]);
  CHECK(cudaDeviceSynchronize());
  REQUIRE(pool.statistics().live == 0 && pool.statistics().reserved <= (64u << 20));
  void* const on_default = pool.allocate(nullptr, 1 << 20);
  stamp<<<64, 256>>>(static_cast<int*>(on_default), 1000, 1);
  pool.deallocate(nullptr, on_default, 1 << 20);
  CHECK(cudaDeviceSynchronize());
  std::printf("CCCL %d: stamps, graphs, Thrust and the default stream are right\n", CCCL_VERSION);
}
