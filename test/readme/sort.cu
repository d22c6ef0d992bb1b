#include <gpumem/thrust.hpp>
#include <thrust/sort.h>

void sort(gpumem::pool pool, cudaStream_t stream, int* first, int* last) {
  thrust::sort(gpumem::exec_policy(stream, pool), first, last);
}
