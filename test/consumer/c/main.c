// A user's C program: memory from a pool, on the simulated device of the package.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem.h>

#include <dlfcn.h>
#include <stdio.h>

static int failed(gpumem_outcome outcome) {
  if (outcome != GPUMEM_GRANTED) fprintf(stderr, "%s: %s\n", gpumem_outcome_name(outcome), gpumem_last_error());
  return outcome != GPUMEM_GRANTED;
}

int main(int count, char** arguments) {
  char driver[4096];
  gpumem_pool* pool = NULL;
  void* block = NULL;
  if (count < 2) return 2;
  // Loaded before the first call, this library is the driver.
  snprintf(driver, sizeof driver, "%s/%s/gpumem/libgpumem_simulator_driver.so", arguments[1], GPUMEM_LIBRARY_FOLDER);
  if (!dlopen(driver, RTLD_NOW | RTLD_GLOBAL)) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  if (failed(gpumem_make_pool(0, "limit=1GiB,name=consumer", &pool))) return 1;
  if (failed(gpumem_allocate_sync(pool, 1 << 20, GPUMEM_ALIGNMENT, &block))) return 1;
  if (failed(gpumem_free_sync(pool, block, 1 << 20))) return 1;
  if (failed(gpumem_release(pool))) return 1;
  puts("allocated and freed 1 MiB on the simulated device");
  return block == NULL;
}
