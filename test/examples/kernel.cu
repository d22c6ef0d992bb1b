#include <cstdio>
#include <gpumem/pool.hpp>

__global__ void count_up(int* values, int count) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] = i;
}

int main() {
  constexpr int count = 1000;
  gpumem::pool pool{0, "limit=1GiB"};
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  {
    gpumem::pool_block const block = pool.acquire(stream, count * sizeof(int));
    count_up<<<4, 256, 0, stream>>>(static_cast<int*>(block.data()), count);
    std::printf("the launch: %s\n", cudaGetErrorName(cudaGetLastError()));
  } // freed in the order of the stream: the kernel may still run
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}
