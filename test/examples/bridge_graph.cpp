#include <cstdio>
#include <cuda_runtime_api.h>
#include <gpumem/graph_memory.hpp>

int main() {
  gpumem::pool pool{0, "limit=1GiB"};
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  gpumem::graph_memory memory{pool}; // keep it as long as the graphs
  for (int update = 0; update < 3; ++update) {
    cudaGraph_t graph = nullptr;
    {
      auto const scope = memory.capture(stream);
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
      for (int layer = 0; layer < 8; ++layer) {
        auto const temporary = pool.acquire(stream, 3 << 20); // each layer gets the memory of the one before
        cudaMemsetAsync(temporary.data(), layer, temporary.bytes(), stream);
      }
      cudaStreamEndCapture(stream, &graph);
    }
    cudaGraphExec_t run = nullptr; // or cudaGraphExecUpdate
    cudaGraphInstantiate(&run, graph, 0);
    for (int i = 0; i < 10; ++i) cudaGraphLaunch(run, stream);
    cudaStreamSynchronize(stream);
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
  }
  std::printf("%zu MiB stay for the graphs of 24 layers\n", memory.bytes() >> 20);
  cudaStreamDestroy(stream);
}
