#include <gpumem/gpumem.h>
#include <stdio.h>

int main(void) {
  gpumem_pool* pool = NULL;
  if (gpumem_make_pool(0, "limit=64MiB, name=serving", &pool) != GPUMEM_GRANTED) {
    fprintf(stderr, "%s\n", gpumem_last_error());
    return 1;
  }
  void* const stream = GPUMEM_STREAM_PER_THREAD; /* or a cudaStream_t */
  void* block = NULL;
  void* more = NULL;
  gpumem_outcome result = gpumem_allocate(pool, stream, 48 << 20, GPUMEM_ALIGNMENT, &block);
  if (result == GPUMEM_GRANTED) {
    /* Waits in line, for 1 ms at most. */
    result = gpumem_acquire(pool, stream, 32 << 20, GPUMEM_ALIGNMENT, 1000000, &more);
    printf("the second block: %s\n", gpumem_outcome_name(result));
    gpumem_free(pool, stream, block);
  }
  gpumem_statistics seen = {.size = sizeof seen};
  gpumem_read_statistics(pool, &seen);
  printf("%llu allocation, %llu bytes live\n", (unsigned long long)seen.allocations, (unsigned long long)seen.live);
  gpumem_release(pool);
  return 0;
}
