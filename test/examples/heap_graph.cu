#include <cstdio>
#include <gpumem/device_heap.cuh>

struct edge {
  int target;
  edge* next;
};

__global__ void add_edges(gpumem::heap_view heap, edge** lists, int vertices, int count) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  edge* const added = heap.create<edge>(edge{i / vertices, nullptr});
  if (added == nullptr) return; // the heap is full, which its statistics count
  auto* const first = reinterpret_cast<unsigned long long*>(lists + i % vertices);
  added->next = reinterpret_cast<edge*>(atomicExch(first, reinterpret_cast<unsigned long long>(added)));
}

__global__ void remove_edges(gpumem::heap_view heap, edge** lists, int vertices) { // any thread may free
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (edge* each = i < vertices ? lists[i] : nullptr; each != nullptr;) {
    edge* const next = each->next;
    heap.destroy(each);
    each = next;
  }
}

int main() {
  constexpr int vertices = 100'000, count = 1'000'000, threads = 256;
  gpumem::pool pool{0, "limit=1GiB"};
  cudaStream_t stream = nullptr; // the default stream
  gpumem::device_heap heap{pool, stream, {64 << 20}};
  gpumem::pool_block const lists = pool.acquire(stream, vertices * sizeof(edge*));
  auto* const first = static_cast<edge**>(lists.data());
  cudaMemsetAsync(first, 0, lists.bytes(), stream);
  add_edges<<<(count + threads - 1) / threads, threads, 0, stream>>>(heap.view(), first, vertices, count);
  auto const built = heap.statistics(stream); // waits for the kernel
  std::printf("%d edges, %d failed\n", static_cast<int>(built.live), static_cast<int>(built.failed));
  remove_edges<<<(vertices + threads - 1) / threads, threads, 0, stream>>>(heap.view(), first, vertices);
  std::printf("%d edges after the end\n", static_cast<int>(heap.statistics(stream).live));
}
