#include <cstdio>
#include <gpumem/device_heap.cuh>

struct node {
  int key, value;
  node* next;
};
constexpr int buckets = 1 << 20, batch = 1'000'000, threads = 256;
__device__ int bucket_of(int key) { return static_cast<int>(key * 2654435761u >> 12); }

__global__ void insert(gpumem::heap_view heap, node** table, int first_key) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  node* const added = i < batch ? heap.create<node>(node{first_key + i, i, nullptr}) : nullptr;
  if (added == nullptr) return;
  auto* const first = reinterpret_cast<unsigned long long*>(table + bucket_of(added->key));
  added->next = reinterpret_cast<node*>(atomicExch(first, reinterpret_cast<unsigned long long>(added)));
}

__global__ void find(node* const* table, int keys, int* found) {
  int const key = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (node const* each = key < keys ? table[bucket_of(key)] : nullptr; each != nullptr; each = each->next)
    if (each->key == key && each->value == key % batch) atomicAdd(found, 1);
}

int main() {
  gpumem::pool pool{0, "limit=2GiB"};
  cudaStream_t stream = nullptr;
  gpumem::device_heap heap{pool, stream, {32 << 20, 1 << 30}}; // 32 MiB now, addresses for 1 GiB
  auto const memory = pool.acquire(stream, buckets * sizeof(node*) + sizeof(int));
  auto* const table = static_cast<node**>(memory.data());
  cudaMemsetAsync(table, 0, memory.bytes(), stream);
  for (int i = 0; i < 8; ++i) {
    while (heap.statistics(stream).free < batch * 32) heap.grow_to(stream, heap.bytes() * 2); // no node moves
    insert<<<(batch + threads - 1) / threads, threads, 0, stream>>>(heap.view(), table, i * batch);
  }
  int found = 0, *const counter = reinterpret_cast<int*>(table + buckets);
  find<<<8 * batch / threads, threads, 0, stream>>>(table, 8 * batch, counter);
  cudaMemcpy(&found, counter, sizeof found, cudaMemcpyDefault);
  std::printf("%d keys found, %d MiB\n", found, static_cast<int>(heap.bytes() >> 20));
}
