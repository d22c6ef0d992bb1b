#include <cstdio>
#include <cuda_runtime_api.h>
import gpumem;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card};
  gpumem::graph_resource memory{pool}; // keep a handle as long as the graphs
  gpumem::stream stream{card};
  cudaGraph_t graph = nullptr;
  {
    auto const scope = pool.capture(memory, stream);
    stream.begin_capture();
    void* const block = pool.allocate(stream, 1 << 20); // graph memory: the same address at each launch
    cudaMemsetAsync(block, 1, 1 << 20, stream.get());
    pool.deallocate(stream, block, 1 << 20); // later requests of this stream in the capture may have it
    graph = stream.end_capture();
  }
  cudaGraphExec_t run = nullptr;
  cudaGraphInstantiate(&run, graph, 0);
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(run, stream.get());
  stream.synchronize();
  std::printf("%zu MiB of the pool stay with the graph\n", pool.statistics().live >> 20);
  cudaGraphExecDestroy(run);
  cudaGraphDestroy(graph);
}
